"""`checkpoint.best`: the same checkpoint is the best one, and is kept, whatever stops a run."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain.__main__ import main
from pretrain.run_dir.paths import RunDir, complete_checkpoints
from pretrain.run_dir.records import read_events
from tests.end_to_end.conftest import write_config
from tests.helpers import command

WORSENS = (  # the loss falls while the rate is low, and then rises
    "checkpoint.best=loss",
    *("evaluate.every_steps=3", "checkpoint.every_steps=0", "checkpoint.keep=1"),
    *("schedule.name=linear", "schedule.warmup_tokens=6144", "optimizer.learning_rate=0.04"),
)


def losses(run: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in read_events(run) if event["event"] == "heldout"}


def names(run: Path) -> list[str]:
    return [path.name for path in complete_checkpoints(RunDir(run).checkpoints)]


def best_of(run: Path) -> dict[str, Any]:
    *_, newest = (event for event in read_events(run) if event["event"] == "best")
    return {key: newest[key] for key in ("step", "figure", "value")}


@pytest.fixture(scope="module")
def worsening(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped and whose best checkpoint is not its last."""
    path = write_config(dataset, tmp_path_factory.mktemp("worsening"))
    done = command.run("train", path, *WORSENS)
    assert done.returncode == 0, done.stderr
    run = path.parent / "run"
    bests = _best_steps(run)
    assert len(bests) >= 3, f"on this text the loss falls at first, to a third best step: {losses(run)}"
    assert bests[-1] < 24, f"on this text the loss rises in the end: {losses(run)}"
    return run


def _best_steps(run: Path) -> list[int]:
    """Steps that were the best so far, in order."""
    return [event["step"] for event in read_events(run) if event["event"] == "best"]


def test_the_best_checkpoint_is_kept_with_the_newest(worsening: Path) -> None:
    by_step = losses(worsening)
    assert list(by_step) == list(range(3, 25, 3))
    best = min(by_step, key=by_step.__getitem__)
    assert names(worsening) == [f"step-{best:08d}", "step-00000024"]
    assert best_of(worsening) == {"step": best, "figure": "loss", "value": by_step[best]}
    assert (RunDir(worsening).checkpoints / "best").resolve() == RunDir(worsening).checkpoint(best).resolve()
    done = command.run("eval", RunDir(worsening).checkpoints / "best", "--tasks", "heldout", "--out", worsening / "out")
    assert done.returncode == 0, done.stderr
    assert f"{by_step[best]:.4f}" in done.stdout
    assert f"step-{best:08d}" in (worsening / "out/report.json").read_text()


def _kill_instead_of_saving(step: int, unsaved: int) -> None:
    from pretrain.training import loop

    save = loop._save

    def killed(session: Any, state: Any, saver: Any, must_save: bool) -> float:
        if state.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == unsaved:  # as if its save had still been in flight
            return 0.0
        return save(session, state, saver, must_save)

    loop._save = killed


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(), ("parallel.tensor=2", "--nproc", "2")], ids=["one rank", "moved"])
def test_a_run_killed_between_an_evaluation_and_its_save_has_the_same_best_checkpoint(
    layout: tuple[str, ...], worsening: Path, config: Path
) -> None:
    """The evaluations of the best step and of the best one before it are recorded, and their checkpoints are not there:
    the run resumes from before both."""
    run = config.parent / "run"
    start, unsaved, best = _best_steps(worsening)[-3:]
    killed = command.Command("train", config, *WORSENS, first=partial(_kill_instead_of_saving, best, unsaved))
    assert killed.wait(120) == -signal.SIGKILL, killed.printed
    assert best_of(run)["step"] == best
    assert f"step-{best:08d}" not in names(run)
    done = command.run("train", config, *WORSENS, *layout)
    assert done.returncode == 0, done.stderr
    assert names(run) == names(worsening)
    assert best_of(run)["step"] == best
    theirs = losses(worsening)
    assert losses(run) == (pytest.approx(theirs, rel=1e-4) if layout else theirs)
    events = [(event["event"], event["step"]) for event in read_events(run) if event["event"] in ("resumed", "best")]
    assert events[events.index(("resumed", start)) + 1 :] == [("best", unsaved), ("best", best)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["checkpoint.best=loss", "evaluate.every_steps=0"], "set evaluate.every_steps"),
        (["checkpoint.best=accuracy"], "checkpoint.best=accuracy is not computed by this run"),
        (["checkpoint.best=perplexity"], "checkpoint.best=perplexity is no figure of this run"),
    ],
)
def test_mistakes_are_one_sentence_before_the_first_step(
    arguments: list[str], sentence: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (config.parent / "run/checkpoints").exists()
