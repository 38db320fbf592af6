"""What a package declares as the key of a part, and cannot have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = """
from pretrain.config.part_key import PartKey
from pretrain.config.section import Section

class Settings(Section):
    size: int = 1

LAYERS, GAIN = (PartKey(name, Settings, "a part", follows="activation") for name in ("layers", "gain"))
"""


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("experts = added:GAIN", "declares 'experts' in pretrain.part_keys, which is the name of a built-in part"),
        ("layers = added:LAYERS", "A package declares the part 'layers', and model.layers is a key"),
        ("other = added:GAIN", "'other' in pretrain.part_keys is the key model.gain"),
        ("gain = added:GAIN", "No installed package declares 'gain' in pretrain.parts"),
    ],
)
def test_a_name_that_is_taken_or_half_declared_is_refused(declared: str, said: str, tmp_path: Path) -> None:
    metadata = tmp_path / "fake-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[pretrain.part_keys]\n{declared}\n")
    (tmp_path / "added.py").write_text(MODULE)
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "pretrain", "keys", "model.hidden"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
