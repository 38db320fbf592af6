"""`health.spike`: a batch of noise in the middle of a run is found, and under `act` the run ends as if it had never
been in the data: to the bit, on one rank and several, and wherever the run is killed in the rollback."""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from data_pipeline.batch import Batch
from pretrain.engine.base import StepResult
from pretrain.run_dir.records import read_metrics
from tests.helpers import command
from tests.helpers.breadth import slow
from tests.helpers.noise import BAD, ROWS, STEPS, TOKENS, CleanRuns, assert_same, events, has_noise, spikes, train

ACT = "health.spike={name: act, window: 8}"

LAYOUTS = {
    "one rank": (),
    "pipeline 2": ("parallel.pipeline=2", "--nproc", "2"),
    "tensor 2 x pipeline 2": ("parallel.tensor=2", "parallel.pipeline=2", "--nproc", "4"),
    "data 2, stage 3": ("parallel.zero=3", "parallel.zero_engine=deepspeed", "--nproc", "2"),
}
SLOW = ("one rank", "tensor 2 x pipeline 2", "data 2, stage 3")


@pytest.mark.parametrize(
    "layout",
    [pytest.param(LAYOUTS[name], marks=[pytest.mark.slow] if name in SLOW else [], id=name) for name in LAYOUTS],
)
def test_act_ends_as_the_run_that_never_had_the_noise(
    layout: tuple[str, ...], noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    said = train(noisy_config("run"), *layout, ACT)
    run = tmp_path / "run"
    (spike,) = spikes(run)
    assert f"warning: step {BAD}: the loss is " in said
    assert_same(read_metrics(run), clean_runs.steps(*layout))
    assert (spike["step"], spike["sample"], spike["samples"]) == (BAD, ROWS * (BAD - 1), ROWS)
    assert spike["value"] > spike["limit"] > spike["median"]
    assert {one["source"] for one in spike["documents"]} == {"noise"}
    assert {one["file"] for one in spike["documents"]} == {"noise.txt"}
    (back,) = events(run, "rolled_back")
    assert (back["step"], back["to_step"], back["why"]) == (BAD, 15, spike["why"])


@pytest.mark.slow
def test_without_a_checkpoint_the_run_starts_over(
    noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    train(noisy_config("run"), ACT, "checkpoint.every_steps=0")
    assert_same(read_metrics(tmp_path / "run"), clean_runs.steps())
    assert [back["to_step"] for back in events(tmp_path / "run", "rolled_back")] == [0]


@pytest.mark.slow
def test_a_run_that_skips_the_samples_from_its_start_is_the_same_run_and_the_ledger_shows_them(
    noisy_config: Callable[..., Path], tmp_path: Path
) -> None:
    train(noisy_config("run"), ACT)
    run, skipping = tmp_path / "run", tmp_path / "skipping"
    (spike,) = spikes(run)
    skip = [{key: spike[key] for key in ("step", "sample", "samples", "why")}]
    assert YAML(typ="safe").load(run / "config.yaml")["run"]["skipped"] == skip
    train(run / "config.yaml", "health.spike=off", f"run.dir={skipping}")
    assert_same(read_metrics(skipping), read_metrics(run))
    assert "the same run" in (said := command.run("compare", run, skipping).stdout).splitlines(), said
    for directory in (run, skipping):
        ledger = json.loads(command.run("data", "ledger", directory, "--json").stdout)
        assert [(skip["step"], skip["tokens"]) for skip in ledger["skipped"]] == [(BAD, {"noise": TOKENS})]
        assert [entry["tokens"] for entry in ledger["realised"]] == [STEPS * TOKENS, 0]
        assert ledger["realised"] == ledger["planned"]
    assert f"left out at step {BAD}, the loss is" in command.run("data", "ledger", run).stdout
    traced = command.run("data", "trace", run, "--step", BAD).stdout
    assert "noise" not in traced
    assert "text" in traced


@pytest.mark.slow
def test_warn_and_off_change_nothing(noisy_config: Callable[..., Path], tmp_path: Path) -> None:
    said = train(noisy_config("warned"), "health.spike={name: warn, window: 8}")
    assert [spike["step"] for spike in spikes(tmp_path / "warned")] == [BAD]
    assert f"warning: step {BAD}: the loss is " in said
    train(noisy_config("off"), "health.spike=off")
    assert_same(read_metrics(tmp_path / "warned"), read_metrics(tmp_path / "off"))
    assert events(tmp_path / "off", "spike") == []
    assert len(read_metrics(tmp_path / "off")) == STEPS


@pytest.mark.slow
def test_a_stop_before_the_noise_does_not_blind_the_run(
    noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    """The steps that the next is judged by are those before the stop."""
    config = noisy_config("run")
    train(config, ACT, f"train.steps={BAD - 1}")
    train(config, ACT, "parallel.tensor=2", "--nproc", "2")
    assert [spike["step"] for spike in spikes(tmp_path / "run")] == [BAD]
    found, expected = read_metrics(tmp_path / "run"), clean_runs.steps()
    assert [line["data_hash"] for line in found] == [line["data_hash"] for line in expected]
    np.testing.assert_allclose([line["loss"] for line in found], [line["loss"] for line in expected], atol=1e-5)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(moment: str) -> None:
    """Kills the reporting rank at a moment between finding the noise and finishing the rollback."""
    from pretrain.observe import run_dir_writer
    from pretrain.observe.run_dir_writer import RunDirWriter
    from pretrain.training import resume

    event, write, cut, load = (
        RunDirWriter.event,
        RunDirWriter._write_config,
        run_dir_writer.MetricsLog,
        resume.store.load,
    )
    began = []

    def dying_event(self: Any, name: str, **facts: Any) -> None:
        event(self, name, **facts)
        if (moment, name) in (("the spike is recorded", "spike"), ("the rollback is recorded", "rolled_back")):
            assert self._events.flush(60)
            _die()

    def dying_write(self: Any, config: Any) -> None:
        began.append(1)
        if len(began) > 1 and moment == "metrics are cut":
            _die()
        write(self, config)
        if len(began) > 1 and moment == "the skip is on disk":
            _die()

    def dying_cut(*arguments: Any) -> Any:
        if arguments[1] == BAD - 1 and moment == "nothing is written":
            _die()
        return cut(*arguments)

    def dying_load(*arguments: Any) -> Any:
        loaded = load(*arguments)
        if moment == "weights are loaded":
            _die()
        return loaded

    RunDirWriter.event = dying_event  # type: ignore[method-assign]
    RunDirWriter._write_config = dying_write  # type: ignore[method-assign]
    run_dir_writer.MetricsLog = dying_cut  # type: ignore[misc, assignment]
    resume.store.load = dying_load  # type: ignore[assignment]


MOMENTS = (
    "the spike is recorded", "nothing is written", "metrics are cut", "the skip is on disk", "weights are loaded",
    "the rollback is recorded",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("moments", [MOMENTS[1:4:2], slow((MOMENTS,))], ids=["two moments", "every moment"])
def test_a_run_killed_during_its_rollback_is_the_same_run(
    moments: tuple[str, ...],
    noisy_config: Callable[..., Path],
    clean_runs: CleanRuns,
    tmp_path: Path,
) -> None:
    """The runs are killed one after the other: each start finds what the one before it left."""
    config, layout = noisy_config("run"), ("--nproc", "2")
    for moment in moments:
        said = train(config, *layout, ACT, status=1, first=partial(_die_at, moment))
        assert "was ended by SIGKILL" in said, moment
        assert not events(tmp_path / "run", "finished")
    train(config, *layout, ACT)
    assert_same(read_metrics(tmp_path / "run"), clean_runs.steps(*layout))
    for kind in ("spike", "rolled_back"):
        assert [event["step"] for event in events(tmp_path / "run", kind)] == [BAD], kind


@pytest.mark.slow
def test_two_bad_batches_in_a_row_are_both_skipped(
    noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    train(noisy_config("run", batches=2), ACT)
    run = tmp_path / "run"
    found = spikes(run)
    assert_same(read_metrics(run), clean_runs.steps())
    for both in (found, events(run, "rolled_back")):
        assert [(one["step"], one["sample"]) for one in both] == [(BAD, ROWS * (BAD - 1))] * 2
    documents = [{one["index"] for one in spike["documents"]} for spike in found]
    assert documents[0] != documents[1]
    skipped = json.loads(command.run("data", "ledger", run, "--json").stdout)["skipped"]
    assert [skip["tokens"] for skip in skipped] == [{"noise": TOKENS}] * 2


def test_too_many_rollbacks_end_the_run_and_name_the_documents(
    noisy_config: Callable[..., Path], tmp_path: Path
) -> None:
    said = train(noisy_config("run", batches=2), "health.spike={name: act, window: 8, max_rollbacks: 1}", status=1)
    assert f"pretrain: step {BAD}: the loss is " in said
    assert f"and the run has rolled back from steps {BAD} already (health.spike.max_rollbacks=1)" in said
    assert "look at the step's documents (noise: noise.txt:" in said
    assert [spike["step"] for spike in spikes(tmp_path / "run")] == [BAD, BAD]
    assert len(events(tmp_path / "run", "rolled_back")) == 1
    (failed,) = events(tmp_path / "run", "failed")
    assert f"step {BAD}" in failed["reason"]


def _stop_at_noise() -> None:
    """Sends the process a signal to stop in a step on noise."""
    from pretrain.engine.megatron.engine import MegatronEngine

    step_of = MegatronEngine.train_step

    def stopped(self: MegatronEngine, batch: Batch, learning_rate: float, step: int) -> StepResult:
        if has_noise(batch):
            os.kill(os.getpid(), signal.SIGTERM)
        return step_of(self, batch, learning_rate, step)

    MegatronEngine.train_step = stopped  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_run_stopped_at_the_noise_rolls_back_first_and_saves(
    noisy_config: Callable[..., Path], clean_runs: CleanRuns, tmp_path: Path
) -> None:
    train(noisy_config("run"), ACT, status=75, first=_stop_at_noise)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == list(range(1, 17)), "15, and one more"
    assert (tmp_path / "run" / "checkpoints" / "step-00000016").is_dir()
    train(noisy_config("run"), ACT)
    assert_same(read_metrics(tmp_path / "run"), clean_runs.steps())
