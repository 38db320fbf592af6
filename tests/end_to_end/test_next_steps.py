"""Every next step that a command prints runs as it stands, in the directory where it was printed."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.helpers import command
from tests.helpers.prose import prose

NEXT = re.compile(r"^(?:next: |      |then: )pretrain (.+)$", re.MULTILINE)
LADDER = ("--sizes", "100k,200k", "--tokens-per-parameter", "1,2", "--rule", "constant")


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def steps_of(*arguments: object) -> list[list[str]]:
    """The next steps that `pretrain ARGUMENTS` prints, as words after `pretrain`."""
    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr
    return [shlex.split(step) for step in NEXT.findall(done.stdout)]


def take(steps: list[list[str]]) -> None:
    """Runs each as it stands, but for an evaluation, which asks of fewer documents."""
    for step in steps:
        done = command.run(*step, *(("--limit", "10") if step[0] == "eval" else ()))
        assert done.returncode == 0, (step, done.stderr)


@pytest.mark.slow
def test_those_of_a_finished_run_and_of_the_import_of_its_export(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "a run")
    steps = steps_of("train", uninterrupted / "config.yaml", "run.dir=a run", "--nproc", "2")
    assert [step[0] for step in steps] == ["eval", "generate", "export"]
    take(steps)
    assert (tmp_path / "a run" / "reports" / "first" / "report.html").is_file()
    steps = steps_of("import", "hf", steps[-1][-1], "--out", "imported")
    assert [step[0] for step in steps] == ["eval", "generate", "data", "train"]
    (tmp_path / "book.txt").write_text("\n\n".join(prose()[:20]))
    filled = {"input=TEXT": "input=book.txt", "output=DATASET": "output=book", "data.path=DATASET": "data.path=book"}
    small = {"train.steps=1000": "train.steps=2"}
    take([[(filled | small).get(word, word) for word in step] for step in steps])
    assert (tmp_path / "imported-trained" / "checkpoints" / "step-00000002").is_dir()


def test_those_of_a_ladder_for_slurm(dataset: Path) -> None:
    """The commands for this machine are those of `make ladder`."""
    done = command.run("scale", "ladder", "debug/ladder", f"data.path={dataset}", *LADDER, "--out", "a ladder")
    assert done.returncode == 0, done.stderr
    launched = [shlex.split(step) for step in re.findall(r"   or   pretrain (.+)$", done.stdout, re.MULTILINE)]
    assert len({step[step.index("--directory") + 1] for step in launched}) == 2
    take([[*step, "--dry-run"] for step in launched])
