"""A run under `health.replay_every` is the run without it, to the last bit; a step that a machine computes wrong ends
it before the update, and the same command resumes."""

import shutil
from pathlib import Path

import pytest

from pretrain.errors import MiscomputedError
from pretrain.run_dir.records import read_metrics
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
    assert (event["step"], event["ranks"], event["kind"], len(event["hosts"])) == (9, [0], "forward", 1)
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
