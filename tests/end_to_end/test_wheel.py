"""The package as pip builds it, without a checkout beside it."""

import json
import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PARTS = ("pretrain", "data_pipeline", "launch", "configs", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of this checkout, built offline."""
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
    return next(wheels.glob("pretrain-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the wheel holds."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


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
def test_every_file_of_published_sets_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    listed = run(ROOT, tmp_path, "-m", "pretrain", "finetune", "fetch").stdout
    assert len(listed.splitlines()) >= 50
    assert run(installed, tmp_path, "-m", "pretrain", "finetune", "fetch").stdout == listed
    code = "from pretrain.finetune.sets.row_filters import mrpc_validation; print(mrpc_validation(9))"
    assert run(installed, tmp_path, "-c", code).stdout.strip() == "True"


@pytest.mark.slow
def test_a_command_reads_a_packaged_config_with_what_it_extends(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "pretrain", "train", "gpt3/125m")
    assert (done.returncode, done.stderr.startswith("pretrain: no data: set data.path")) == (2, True), done.stderr


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `pretrain` of an environment into which pip has installed the wheel, and which sees the libraries of
    this one, but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    )
    Path(where.stdout.strip(), "libraries.pth").write_text("\n".join(site.getsitepackages()))
    install = ["install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    done = subprocess.run([python, "-m", "pip", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin" / "pretrain"


def call(program: Path, directory: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([program, *arguments], cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_installed_command_plans_builds_and_trains_outside_the_tree(program: Path, tmp_path: Path) -> None:
    code = "import pretrain, launch, data_pipeline as d; print(pretrain.__file__, launch.__file__, d.__file__)"
    files = call(program.with_name("python"), tmp_path, "-c", code).split()
    assert all(str(program.parents[1]) in file for file in files), files
    assert "bytes" in call(program, tmp_path, "plan", "debug/gpt", "--gpus", "2", "--hardware", "h100", "--json")
    assert "checkpoint.every_steps" in call(program, tmp_path, "keys", "checkpoint")
    (tmp_path / "book.txt").write_text("".join(f"{n} and one is {n + 1}.\n\n" for n in range(3000)))
    text = ("input=book.txt", "output=book", "txt_documents=paragraph", "tokenizer.vocabulary=300")
    call(program, tmp_path, "data", "build", "data/text", *text)
    call(program, tmp_path, "train", "debug/gpt", "data.path=book", "run.dir=run", "--nproc", "2", *SHORT)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert "gpt" in call(program, tmp_path, "runs", "run")


SHORT = (
    "parallel={tensor: 2}",
    "train={steps: 5}",
    "schedule={name: constant}",
    "evaluate={every_steps: 0}",
    "track.mlflow=false",
)


def test_constraints_pin_every_library_within_the_package_s_bounds() -> None:
    """`make setup` installs the pins, so that bounds that exclude one would fail only there."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pins = {_plain(name): version for name, version in (line.split("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[_plain(requirement.name)]), text
    for text in project["dependencies"]:
        assert {part.operator for part in Requirement(text).specifier} == {">=", "<"}, text


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
