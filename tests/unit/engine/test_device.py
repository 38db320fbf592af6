"""What is set for CUDA before it starts, and what stands in for it."""

import os
from typing import Any

import pytest
import torch

from pretrain.config.parallel import Parallel
from pretrain.engine import device
from pretrain.engine.device import set_max_connections


@pytest.mark.parametrize(
    ("parallel", "said", "found"),
    [
        ({"tensor": 2}, None, "1"),
        ({"tensor": 2}, "8", "8"),
        ({}, None, None),
        ({"tensor": 2, "zero": 3, "zero_engine": "deepspeed"}, None, None),
    ],
    ids=["tensor ranks", "told otherwise", "none", "DeepSpeed's"],
)
def test_tensor_ranks_have_kernels_in_the_order_they_are_called(
    parallel: dict[str, Any], said: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    monkeypatch.setenv(name, said or "")
    if said is None:
        monkeypatch.delenv(name)
    set_max_connections(Parallel(**parallel))
    assert os.environ.get(name) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without CUDA")
def test_without_cuda_its_current_device_is_the_cpu_and_its_stream_is_none() -> None:
    """megatron-core asks for both while it reduces gradients."""
    assert device.install() == torch.device("cpu")
    assert torch.cuda.current_device() == torch.device("cpu")
    assert torch.cuda.current_stream() is None
