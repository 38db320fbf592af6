"""The package as pip builds it, without a checkout beside it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("pretrain", "data_pipeline", "launch", "configs", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what a wheel of a copy of this checkout holds; built offline."""
    folder = tmp_path_factory.mktemp("wheel")
    source, wheels = folder / "source", folder / "wheels"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / part, source)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels), str(source)]
    done = subprocess.run([sys.executable, "-m", "pip", *build], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = wheels.glob("pretrain-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def run(installed: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_every_config_file_is_in_the_wheel_and_found_by_name(installed: Path, tmp_path: Path) -> None:
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    held = installed / "pretrain" / "configs"
    assert {path.relative_to(held) for path in held.rglob("*.yaml")} == shipped
    code = "import pretrain.config.shipped as s; print(s.locate('gpt3/125m'))"
    assert run(installed, tmp_path, "-c", code).stdout.strip() == str(held / "gpt3" / "125m.yaml")


@pytest.mark.slow
def test_every_task_file_is_in_the_wheel_and_found_by_name(installed: Path, tmp_path: Path) -> None:
    shipped = {path.name for path in (ROOT / "pretrain" / "evaluate" / "tasks" / "files").iterdir()}
    assert len(shipped) > 30
    assert {path.name for path in (installed / "pretrain" / "evaluate" / "tasks" / "files").iterdir()} == shipped
    code = "from pretrain.evaluate.tasks.registry import task_named; print(task_named('hellaswag').title)"
    assert run(installed, tmp_path, "-c", code).stdout.strip() == "HellaSwag"


@pytest.mark.slow
def test_a_command_reads_a_packaged_config_with_what_it_extends(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "pretrain", "train", "gpt3/125m")
    assert (done.returncode, done.stderr.startswith("pretrain: no data: set data.path")) == (2, True), done.stderr
