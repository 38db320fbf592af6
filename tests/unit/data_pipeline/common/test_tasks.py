"""Tasks: shared by commands that take them in orders of their own, listed and not looked up, and done once."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.common import tasks
from data_pipeline.common.locks import try_lock
from data_pipeline.common.tasks import BuildTask, run_tasks
from data_pipeline.executors.processes import ProcessExecutor

COUNT = 200


def note(folder: Path, number: int) -> int:
    with (folder / "log").open("a") as log:
        log.write(f"{number}\n")
    return number * number


def tasks_in(folder: Path, count: int = COUNT) -> list[BuildTask]:
    return [BuildTask(f"{number:06d}", partial(note, folder, number), 1) for number in range(count)]


def order(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "log").read_text().split()]


def test_results_come_in_the_order_of_the_tasks_and_each_is_done_once(tmp_path: Path) -> None:
    expected = [number * number for number in range(COUNT)]
    assert run_tasks(tasks_in(tmp_path), tmp_path / "stage", ProcessExecutor(1)) == expected
    assert sorted(order(tmp_path)) == list(range(COUNT))
    assert run_tasks(tasks_in(tmp_path), tmp_path / "stage", ProcessExecutor(1)) == expected
    assert len(order(tmp_path)) == COUNT


def test_each_command_takes_tasks_in_an_order_of_its_own(tmp_path: Path) -> None:
    orders = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run_tasks(tasks_in(tmp_path / name), tmp_path / name / "stage", ProcessExecutor(1))
        orders.append(order(tmp_path / name))
    assert orders[0] != orders[1] != list(range(COUNT))


def test_processes_share_a_stage(tmp_path: Path) -> None:
    tasks = [BuildTask(str(number), partial(process_of, number)) for number in range(40)]
    found = run_tasks(tasks, tmp_path, ProcessExecutor(2))
    assert [number for number, _ in found] == list(range(40))
    assert os.getpid() not in {process for _, process in found}


def process_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


def test_a_stage_that_is_done_is_one_file_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run_tasks(tasks_in(tmp_path), tmp_path / "stage", ProcessExecutor(1))
    monkeypatch.setattr(tasks, "_result", lambda *_: pytest.fail("looks up a task"))
    monkeypatch.setattr(tasks, "_listed", lambda *_: pytest.fail("lists the folder"))
    told: list[bool] = []
    assert (
        run_tasks(tasks_in(tmp_path), tmp_path / "stage", ProcessExecutor(1), lambda task, new: told.append(new))
        == expected
    )
    assert told == [False] * COUNT


def test_what_others_have_done_is_learned_from_one_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tasks(tasks_in(tmp_path), tmp_path / "stage", ProcessExecutor(1))
    (tmp_path / "stage" / tasks._ALL).unlink()
    (tmp_path / "stage" / "000007.done.json").unlink()
    listings, locks = [], []
    listed, locked = tasks._listed, try_lock
    monkeypatch.setattr(tasks, "_listed", lambda *a: listings.append(1) or listed(*a))  # type: ignore[func-returns-value]
    monkeypatch.setattr(tasks, "try_lock", lambda path: locks.append(path) or locked(path))  # type: ignore[func-returns-value]
    run_tasks(tasks_in(tmp_path), tmp_path / "stage", ProcessExecutor(1))
    assert [path.name for path in locks] == ["000007.claim"]
    assert len(listings) == 2
    assert order(tmp_path).count(7) == 2


def test_a_claimed_task_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    claim = try_lock(stage / "000003.claim")
    assert claim is not None
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        claim.release()

    monkeypatch.setattr(time, "sleep", sleep)
    assert run_tasks(tasks_in(tmp_path, 5), stage, ProcessExecutor(1)) == [0, 1, 4, 9, 16]
    assert len(slept) == 1
    assert order(tmp_path)[-1] == 3


def test_what_a_task_raises_is_raised_and_the_others_stay_done(tmp_path: Path) -> None:
    tasks: list[Any] = [*tasks_in(tmp_path, 5), BuildTask("x", partial(divmod, 1, 0), 1)]
    with pytest.raises(ZeroDivisionError):
        run_tasks(tasks, tmp_path / "stage", ProcessExecutor(1))
    done = len(list((tmp_path / "stage").glob("*.done.json")))
    run_tasks(tasks[:5], tmp_path / "stage", ProcessExecutor(1))
    assert len(order(tmp_path)) == 5
    assert done <= 5
