"""Recipes of images: the repository's pass the lint, which finds each planted mistake, and they install the pins."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.lint_images import IMAGES, ROOT, problems


def test_the_recipes_are_well_formed() -> None:
    assert problems(ROOT) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "said"),
    [
        ("Dockerfile", "WORKDIR /work", "WORKDIRS /work", "Dockerfile: WORKDIRS is no instruction"),
        ("Dockerfile", "COPY configs ", "COPY config ", "Dockerfile: config is not in the repository"),
        ("Dockerfile", "ARG DEVICE=cuda\n", "", "Dockerfile: $DEVICE is used before ARG DEVICE"),
        ("Dockerfile", '["--help"]', "--help", "Dockerfile: CMD --help is no JSON list of words"),
        ("Dockerfile.dockerignore", "!launch\n", "", "launch is not in the build's context"),
        ("pretrain.def", "From: python", "From: debian", "the recipes start from different images"),
        ("pretrain.def", "%post", "%posts", "pretrain.def: %posts is no section"),
        ("pretrain.def", "    DEVICE=cuda\n", "", "pretrain.def: {{ DEVICE }} is not in %arguments"),
        ("pretrain.def", 'exec pretrain "$@"', 'exec pretrain "$@', "pretrain.def: %runscript: "),
        ("install.sh", "esac\n    #", "    #", "install.sh: "),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, file: str, right: str, wrong: str, said: str) -> None:
    for path in ROOT.iterdir():
        if path.name not in ("launch", ".git", ".venv"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / IMAGES, tmp_path / IMAGES)
    text = (tmp_path / IMAGES / file).read_text()
    assert right in text
    (tmp_path / IMAGES / file).write_text(text.replace(right, wrong, 1))
    assert any(said in problem for problem in problems(tmp_path)), problems(tmp_path)


@pytest.mark.parametrize(("device", "index"), [("cpu", True), ("cuda", False)])
def test_the_pins_are_installed_and_torch_alone(tmp_path: Path, device: str, index: bool) -> None:
    """With programs in place of apt-get and pip that note how they are called."""
    for name in ("pip", "apt-get", "rm"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for words in (("libraries", device), ("package", "s3,ray")):
        subprocess.run(["sh", ROOT / IMAGES / "install.sh", *words], env=environment, check=True)
    pips = [line.split() for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("pip ")]
    assert [words[-1] for words in pips] == ["torch", "setuptools", "/src[s3,ray]"]
    assert all("--constraint /src/.ci/constraints.txt" in " ".join(words) for words in pips)
    assert ("https://download.pytorch.org/whl/cpu" in pips[0]) == index
    wrong = subprocess.run(
        ["sh", ROOT / IMAGES / "install.sh", "libraries", "tpu"], env=environment, capture_output=True
    )
    assert wrong.returncode == 2
