"""Each Triton kernel compiles for the GPUs that people have, keeps its values in registers, and loads several numbers
at a time."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.benchmarks.triton_kernels import BUILDS, kernels
from tests.helpers.breadth import slow

pytest.importorskip("triton", reason="triton has no wheel for this system")


LOCAL_BYTES = {"rotary.turned": 32}
"""where CUDA's cosine reduces angles of more than 105,615 radians"""


def test_every_kernel_is_compiled_here() -> None:
    assert kernels().keys() == {name.split()[0] for name in BUILDS}


@pytest.mark.parametrize("architecture", [slow(80), slow(89), 90, slow(100)])
def test_a_kernel_spills_no_register_and_loads_16_bytes_at_a_time(architecture: int) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.triton_kernels", "--json", "--architectures", str(architecture)]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    found: list[dict[str, Any]] = json.loads(printed)
    assert {one["kernel"] for one in found} == BUILDS.keys()
    for one in found:
        assert (one["spilled_bytes"], one["load_bits"]) == (LOCAL_BYTES.get(one["kernel"], 0), 128), one
        assert one["registers"] <= 64, one
