"""A run of which a rank is stopped, or waits for ever, says which one and where the others are, and ends; and a rank
that is slow is named."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain.engine.base import StepResult
from pretrain.process.local import free_port
from pretrain.run_dir import heartbeat
from tests.end_to_end.test_train import assert_same_run, metrics, wait_for_steps
from tests.helpers import command

_SETTINGS = ("parallel.tensor=2", "health.hang_s=2", "health.timeout_s=100", "checkpoint.every_steps=4")
_WITHIN_S = 120


def start(config: Path, *settings: str, first: Callable[[], object] | None = None) -> list[command.Command]:
    """Two ranks, as torchrun starts them."""
    port = free_port()
    ranks = []
    for rank in range(2):
        values = (rank, 2, rank, 2, "127.0.0.1", port)
        environment = {name: str(value) for name, value in zip(command.LAUNCHER, values, strict=True)}
        ranks.append(command.Command("train", config, *settings, environment=environment, first=first))
    return ranks


def events(run: Path, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def reports(run: Path) -> dict[str, dict[str, object]]:
    return {path.name: json.loads(path.read_text()) for path in (run / "hangs").glob("step-*/rank-*.json")}


def _slow_steps() -> None:
    from pretrain.engine.megatron.engine import MegatronEngine

    plain = MegatronEngine.train_step

    def train_step(engine: MegatronEngine, *arguments: Any) -> StepResult:
        time.sleep(0.2)
        return plain(engine, *arguments)

    MegatronEngine.train_step = train_step  # type: ignore[method-assign]


@pytest.mark.parametrize("stopped", [pytest.param(1, marks=pytest.mark.slow), 0])
def test_a_stopped_rank_is_named_with_where_the_other_waits_and_wakes_to_its_end(
    stopped: int, config: Path, uninterrupted: Path
) -> None:
    run, other = config.parent / "run", 1 - stopped
    ranks = start(config, *_SETTINGS, first=_slow_steps)
    wait_for_steps(ranks[0], run, 6)
    ranks[stopped].send_signal(signal.SIGSTOP)
    try:
        assert ranks[other].wait(_WITHIN_S) == 1
        said = ranks[other].stderr
        assert said.count("pretrain: ") == 1, said
        assert "Traceback" not in said, said
        assert f"rank {other} waits in " in said
        assert "called from pretrain/" in said
        assert f"rank {stopped} (host {os.uname().nodename}, pid {ranks[stopped].pid}) gave no report" in said
        (hung,) = events(run, "hung")
        (failed,) = events(run, "failed")
        assert [one["rank"] for one in hung["missing"]] == [stopped]  # type: ignore[index, attr-defined]
        assert str(failed["reason"]).startswith(f"the run hangs at step {failed['step']}")
        assert list(reports(run)) == [f"rank-{other:05d}.json"]
        (summary,) = (run / "hangs").glob("step-*/summary.txt")
        assert f"pretrain: {summary.read_text()}" in said
        # A newer attempt goes on while the rank of the older one still holds what it holds.
        done = command.run("train", config, *_SETTINGS, "--nproc", "2")
        assert done.returncode == 0, done.stderr
        before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    finally:
        ranks[stopped].send_signal(signal.SIGCONT)
    assert ranks[stopped].wait(_WITHIN_S) == 1
    assert ranks[stopped].stderr == ""
    assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before
    assert_same_run(run, uninterrupted, tolerance=0)


def _rank_1_waits_for_data() -> None:
    """From the fifth batch on."""
    from data_pipeline.loader import SampleStream

    plain = SampleStream.batch

    def batch(stream: SampleStream, start: int, count: int, data_rank: int, data_world: int) -> object:
        if os.environ["RANK"] == "1" and start >= 4 * count:
            time.sleep(1000)
        return plain(stream, start, count, data_rank, data_world)

    SampleStream.batch = batch  # type: ignore[assignment, method-assign]


@pytest.mark.slow
def test_a_rank_that_waits_for_its_data_is_shown_with_its_stack(config: Path) -> None:
    run = config.parent / "run"
    ranks = start(config, *_SETTINGS, "data.workers=0", first=_rank_1_waits_for_data)
    assert [rank.wait(_WITHIN_S) for rank in ranks] == [1, 1]
    said = "".join(rank.stderr for rank in ranks)
    assert said.count("pretrain: ") == 1, said
    assert "the run hangs at step 5: " in said
    assert "rank 0 waits in " in said
    assert "is at data_pipeline/loader.py" in said
    assert "in _rank_1_waits_for_data" not in said
    assert "time.sleep(1000)" in said, "its stack"
    assert sorted(reports(run)) == ["rank-00000.json", "rank-00001.json"]
    (hung,) = events(run, "hung")
    assert [one["rank"] for one in hung["elsewhere"]] == [1]  # type: ignore[index, attr-defined]
    assert hung["missing"] == []


def _rank_1_scores_slowly() -> None:
    from pretrain.engine.megatron.engine import MegatronEngine

    plain = MegatronEngine.score

    def score(engine: MegatronEngine, batch: object) -> object:
        time.sleep(0.3 if os.environ["RANK"] == "1" else 0)
        return plain(engine, batch)  # type: ignore[arg-type]

    MegatronEngine.score = score  # type: ignore[method-assign, assignment]


@pytest.mark.slow
def test_a_rank_that_takes_long_to_score_is_waited_for(config: Path) -> None:
    """Fourteen batches, so that the other waits for it for twice `hang_s`."""
    run = config.parent / "run"
    settings = ("health.hang_s=2", "train.steps=8", "evaluate.sequences=224", "evaluate.every_steps=4")
    ranks = start(config, *settings, first=_rank_1_scores_slowly)
    waited = False
    while ranks[0].poll() is None:
        waited = waited or any((run / "hangs").glob("step-*/busy-00001.json"))
        time.sleep(0.02)
    assert [rank.wait(_WITHIN_S) for rank in ranks] == [0, 0], ranks[0].stderr
    assert waited, "rank 0 has asked whether anybody goes on"
    assert len(metrics(run)) == 8
    assert not list((run / "hangs").iterdir()), "it was no hang"
    beat = heartbeat.read(run)
    assert beat is not None
    assert (beat.pid, beat.host) == (ranks[0].pid, os.uname().nodename)


def _rank_1_works_slowly() -> None:
    from pretrain.engine.megatron.engine import MegatronEngine

    plain = MegatronEngine.train_step

    def train_step(engine: MegatronEngine, *arguments: Any) -> StepResult:
        until_s = time.thread_time() + (0.2 if os.environ["RANK"] == "1" else 0)
        while time.thread_time() < until_s:
            pass
        return plain(engine, *arguments)

    MegatronEngine.train_step = train_step  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_slow_rank_is_named_and_machines_are_tested_before(config: Path, uninterrupted: Path) -> None:
    run = config.parent / "run"
    settings = ("parallel.tensor=2", "health.straggler_steps=2", "health.preflight=warn")
    ranks = start(config, *settings, first=_rank_1_works_slowly)
    assert [rank.wait(_WITHIN_S) for rank in ranks] == [0, 0], ranks[0].stderr
    (said,) = [line["text"] for line in events(run, "warning") if "holds the others up" in str(line["text"])]
    assert str(said).startswith(f"rank 1 (local rank 1 on {os.uname().nodename}) holds the others up: ")
    (tested,) = events(run, "preflight")
    assert [row["ranks"] for row in tested["nodes"]] == [[0, 1]]  # type: ignore[index, attr-defined]
    assert_same_run(run, uninterrupted, tolerance=0)
