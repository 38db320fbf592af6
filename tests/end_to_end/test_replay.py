"""A run under `health.replay_every` is the run without it, to the last bit; a step that a machine computes wrong ends
it before the update, and the same command resumes."""

import shutil
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.errors import MiscomputedError
from pretrain.run_dir.records import read_metrics
from tests.helpers import command
from tests.helpers.noise import assert_same, events, train

SETTINGS = ("train.steps=12", "checkpoint.every_steps=4", "evaluate.every_steps=0")
REPLAYED = "health.replay_every=3"


def _flip() -> None:
    """One bit of an activation, the first time that step 9 is computed."""
    from random import Random

    from pretrain.engine.megatron.engine import MegatronEngine
    from tests.helpers.bit_flips import planted

    plain = MegatronEngine.train_step

    def train_step(self: MegatronEngine, batch: object, learning_rate: float, step: int) -> object:
        if step != 9:
            return plain(self, batch, learning_rate, step)  # type: ignore[arg-type]
        with planted(self, "activation", Random(3), in_pass=0):
            return plain(self, batch, learning_rate, step)  # type: ignore[arg-type]

    MegatronEngine.train_step = train_step  # type: ignore[assignment, method-assign]


def test_a_flipped_bit_ends_the_run_which_resumes_as_if_it_had_not_been(config: Path) -> None:
    run, plain = config.parent / "run", config.parent / "plain"
    train(config, *SETTINGS)
    shutil.move(run, plain)
    said = train(config, *SETTINGS, REPLAYED, status=1, first=_flip)
    assert "pretrain: step 9: rank 0" in said
    assert "No update was made: a machine is wrong, not the data; run the same command again" in said
    (event,) = events(run, "miscomputed")
    assert (event["step"], event["ranks"], event["kind"], len(event["hosts"])) == (9, [0], "computation", 1)
    (failed,) = events(run, "failed")
    assert failed["reason"].startswith(f"{MiscomputedError.__name__}: step 9: ")
    assert len(read_metrics(run)) == 8
    train(config, *SETTINGS, REPLAYED)
    assert_same(read_metrics(run), read_metrics(plain))


@pytest.mark.slow
def test_a_run_is_the_same_on_two_ranks(config: Path) -> None:
    run, plain = config.parent / "run", config.parent / "plain"
    layout = ("parallel.zero=1", "--nproc", "2")
    train(config, *SETTINGS, *layout)
    shutil.move(run, plain)
    train(config, *SETTINGS, "health.replay_every=1", *layout)
    assert_same(read_metrics(run), read_metrics(plain))


def _spoil() -> None:
    """Makes the gradient of step 6 another one, as a machine might that computes wrong."""
    from pretrain.engine.megatron.engine import MegatronEngine

    plain = MegatronEngine.train_step

    def train_step(self: MegatronEngine, batch: object, learning_rate: float, step: int) -> object:
        if step == 6:
            self.parameters[2].value.data *= 1.5
        return plain(self, batch, learning_rate, step)  # type: ignore[arg-type]

    MegatronEngine.train_step = train_step  # type: ignore[assignment, method-assign]


def _files(run: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_step_comes_out_the_same_again_unless_a_machine_computed_it_wrong(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config.parent / "run"
    train(config, *SETTINGS, "checkpoint.keep=3", first=_spoil)
    before = _files(run)
    done = command.run("replay", run, "--step", 11)
    assert done.returncode == 0, done.stderr
    assert f"{run}: steps 9 to 11 again on tp1pp1dp1" in done.stdout
    assert "the same to the last bit: step 11 is what its data and settings make of it" in done.stdout
    done = command.run("replay", run, "--step", 7, timeout_s=240)
    assert done.returncode == 1, done.stderr
    assert "different from step 6 on: a machine computed wrong then, or this one does now" in done.stdout
    assert _files(run) == before
    refused = {
        ("--step", "3"): "checkpoints lead to steps 5 to 12, and --from-start computes all steps",
        ("--step", "13"): "has no step 13: its metrics.jsonl has steps 1 to 12",
        ("--step", "11", "--layout", "tp3"): "parallel.tensor=3",
    }
    for arguments, words in refused.items():
        assert main(["replay", str(run), *arguments]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_is_computed_again_on_another_layout_and_from_the_start(config: Path) -> None:
    run = config.parent / "run"
    train(config, *SETTINGS, "parallel.tensor=2", "--nproc", "2")
    done = command.run("replay", run, "--step", 10)
    assert (done.returncode, "the same to the last bit" in done.stdout) == (0, True), done
    done = command.run("replay", run, "--step", 10, "--layout", "pp2")
    assert (done.returncode, "the same within rounding" in done.stdout) == (0, True), done
    done = command.run("replay", run, "--step", 2, "--from-start", "--layout", "tp1")
    assert (done.returncode, "the same within rounding" in done.stdout) == (0, True), done
