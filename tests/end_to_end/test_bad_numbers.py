"""Values that are not finite, and runs that train nothing: no such value reaches a weight or a checkpoint, and the run
rolls back or fails."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.batch import Batch
from pretrain.engine.base import StepResult
from pretrain.run_dir.records import read_metrics
from tests.helpers import command
from tests.helpers.noise import BAD, CleanRuns, assert_same, events, has_noise, train

WARN = "health.spike=warn"
ACT = "health.spike=act"
"""The window of this setting is never full here; values that are not finite are found without one."""


def _spoil(what: str) -> None:
    """Makes steps on noise have a loss of NaN, or leave an infinite moment."""
    from pretrain.engine.megatron.engine import MegatronEngine

    step_of = MegatronEngine.train_step

    def spoilt(self: MegatronEngine, batch: Batch, learning_rate: float, step: int) -> StepResult:
        noise = has_noise(batch)
        if noise and what == "loss":
            batch.loss_mask[0, 0] = np.nan
        result = step_of(self, batch, learning_rate, step)
        if noise and what == "moment":
            moments = [part for name, part in self.state().items() if name.startswith("exp_avg_sq/")]
            moments[-1].pieces[0].value.fill_(np.inf)
        return result

    MegatronEngine.train_step = spoilt  # type: ignore[method-assign]


def test_a_loss_that_is_not_a_number_ends_the_run_or_is_rolled_back(
    noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    said = train(noisy_config("ends"), WARN, status=1, first=partial(_spoil, "loss"))
    assert f"pretrain: step {BAD}: the loss or gradient is not finite" in said
    train(noisy_config("acts"), ACT, first=partial(_spoil, "loss"))
    assert_same(read_metrics(tmp_path / "acts"), clean_runs.steps())
    for name in ("ends", "acts"):
        (spike,) = events(tmp_path / name, "spike")
        assert spike["why"] == "the loss is nan"
        assert {one["source"] for one in spike["documents"]} == {"noise"}


@pytest.mark.slow
def test_a_moment_that_is_infinite_is_not_saved(
    noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    every = f"checkpoint.every_steps={BAD}"
    said = train(noisy_config("ends"), WARN, every, status=1, first=partial(_spoil, "moment"))
    assert f"pretrain: step {BAD}: exp_avg_sq/" in said
    assert "is not finite after the update, so it is not saved" in said
    assert not (tmp_path / "ends" / "checkpoints").exists()
    train(noisy_config("acts"), ACT, every, first=partial(_spoil, "moment"))
    assert_same(read_metrics(tmp_path / "acts"), clean_runs.steps())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("precision=fp16", "loss_scale.initial=4294967296"), "every step was skipped"),
        (("precision=fp16", "loss_scale={initial: 6e-8, minimum: 6e-8}"), "every gradient was zero"),
    ],
)
def test_a_run_that_has_trained_nothing_fails_and_saves_nothing(
    settings: tuple[str, ...], words: str, noisy_config: Callable[..., Path], tmp_path: Path
) -> None:
    done = command.run("train", noisy_config("idle"), "train.steps=2", "health.spike=off", *settings)
    assert done.returncode == 1, done.stdout
    assert "the run ends without having trained anything" in done.stderr
    assert words in done.stderr
    assert not list((tmp_path / "idle" / "checkpoints").glob("step-*"))
    assert events(tmp_path / "idle", "failed")
    assert not events(tmp_path / "idle", "finished")
