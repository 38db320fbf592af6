"""What another process sees of a run."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launch import run_progress, tasks
from launch.run_progress import RunProgress
from launch.tasks import ArrayTask
from pretrain.errors import ConfigError

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    assert run_progress.progress(tmp_path / "none") == RunProgress(0, None)
    assert run_progress.failure(tmp_path, LONG_AGO) is None


def test_the_newest_step_and_the_newest_whole_checkpoint_count(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 41}\n{"step": 42}\n{"step": 43, "lo')
    for name in ("step-00000030", "step-00000100", "step-00000200.tmp", "step-00000300.damaged"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert run_progress.progress(tmp_path) == RunProgress(42, 100)


def test_the_last_failure_counts_and_a_hang_is_told_apart(tmp_path: Path) -> None:
    def add(second: int, event: str, **facts: object) -> None:
        time = f"2026-01-01T00:00:{second:02}.000+00:00"
        with (tmp_path / "events.jsonl").open("a") as file:
            file.write(json.dumps({"time": time, "event": event, **facts}) + "\n")

    add(1, "failed", reason="RunError: first")
    add(2, "failed", reason="RunError: second")
    assert run_progress.failure(tmp_path, LONG_AGO) == "RunError: second"
    assert run_progress.failure(tmp_path, datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)) is None
    add(4, "hung", step=3)
    add(4, "failed", reason="the run hangs at step 3")
    assert run_progress.failure(tmp_path, datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)) == (
        "HungError: the run hangs at step 3"
    )


def test_tasks_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tasks.jsonl"
    written = [ArrayTask(("train", "a b", "x='y'"), "/runs/a"), ArrayTask(("eval", "r"), None)]
    tasks.write(path, written)
    assert [tasks.read(path, number) for number in range(2)] == written
    with pytest.raises(ConfigError, match="has no task 2"):
        tasks.read(path, 2)
