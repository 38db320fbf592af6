"""Work that is cut into tasks: done by an executor, for one command or for many, and never done again.

A task's result is a file that appears once the task is done, so a killed command goes on where it stopped. The same
command started several times, on as many machines as see the folder (a job array), shares the tasks: each is claimed by
a lock that its worker's end releases. Two workers on one task, where locks don't reach, waste time and make no other
file, as a task writes equal files under names of its own and renames them.

Who does tasks is an `Executor` (`data_pipeline/executors`). What it starts twice, after it lost a worker, is the same
work once more.

Each command takes tasks in an order of its own, drawn by chance, so that commands seldom meet at one. What is done is
learned from the folder's listing, now and then; the results of a stage of many tasks are read once, by the command that
puts them into one file for all.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.locks import lock, try_lock

_RESULT, _CLAIM, _ALL = ".done.json", ".claim", "all-results.json"
_POLL_S, _LONGEST_POLL_S = 0.25, 8.0
_LISTING_SHARE = 0.05  # of the time, at most, that listing takes
_SMALL = 2**22  # work that is done sooner than it is handed over
_FEW = 64  # results that every command may as well read for itself


@dataclass(frozen=True)
class BuildTask:
    """One piece of work. `run` is picklable, returns plain values, and gives equal files and values each time."""

    key: str
    """Names it among the tasks of its folder."""
    run: Callable[[], Any]
    size: int = 0
    """Bytes that it reads, or whatever the stage counts in: for the progress shown. 0: not known."""
    serial: bool = False
    """Whether it is one task however large the input, so that more machines make it no quicker."""


class Executor(Protocol):
    """Who does tasks, for a whole build."""

    def cores_per_task(self, tasks: int) -> int:
        """How many cores each of so many tasks may keep at work, at least 1."""

    @property
    def max_pending(self) -> int:
        """How many tasks to hand over before one of them has ended. May change."""

    def accepts(self, tasks: Sequence[BuildTask]) -> bool:
        """Whether these of a stage are worth handing over; else they are done in this process."""

    def pool(self, tasks: int) -> concurrent.futures.Executor:
        """Where to submit the tasks of a stage, of which there are so many. What is submitted is picklable. A future
        raises what its task raised, or DataError where the task could not be done."""


def is_small(tasks: Sequence[BuildTask]) -> bool:
    """Whether they are done sooner here than by others."""
    return all(task.size for task in tasks) and sum(task.size for task in tasks) < _SMALL


def run_tasks(
    tasks: Sequence[BuildTask],
    folder: Path,
    executor: Executor,
    done: Callable[[BuildTask, bool], None] = lambda task, new: None,
) -> list[Any]:
    """The results of `tasks`, in order, by `executor`; `done` is told of each as it ends, and whether it was done just
    now or by an earlier start.

    Those with a result in `folder` are not run again. Raises what a task raised, once the others under way have ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (known := _all_results(folder, tasks)) is not None:
        for task in tasks:
            done(task, False)
        return known
    mine: dict[str, Any] = {}  # results of this command
    left = list(tasks)
    random.SystemRandom().shuffle(left)
    first, pause_s = True, _POLL_S
    with _Stage(folder, executor) as stage:
        while True:
            began = time.monotonic()
            listed = _listed(folder)
            for task in [task for task in left if task.key in listed]:
                done(task, not first)
            left = [task for task in left if task.key not in listed]
            if not left:
                break
            first, before = False, len(mine)
            look_s = max(1.0, (time.monotonic() - began) / _LISTING_SHARE)
            for task, value in stage.results(left, time.monotonic() + look_s):
                mine[task.key] = value
                done(task, True)
            left = [task for task in left if task.key not in mine]
            if left and len(mine) == before and not stage.busy:
                time.sleep(pause_s * random.uniform(0.5, 1))  # other commands have claimed what is left
                pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    return _collected(folder, tasks, mine)


class _Stage:
    """Does tasks here or, where there is more to do, by the executor, with one pool until the stage is over."""

    def __init__(self, folder: Path, executor: Executor) -> None:
        self._folder, self._executor = folder, executor
        self._pool: concurrent.futures.Executor | None = None
        self._waiting: dict[Future[tuple[Any] | None], BuildTask] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether tasks are under way that have given no result yet."""
        return bool(self._waiting)

    def results(self, tasks: Sequence[BuildTask], end: float) -> Iterator[tuple[BuildTask, Any]]:
        """Results as they come, until the time `end`. Tasks that other commands have claimed are left out; others may
        still be under way at the end, and give their results at the next call."""
        if self._pool is None and not self._executor.accepts(tasks):
            for task in tasks:
                if (result := _run(self._folder, task)) is not None:
                    yield task, result[0]
                if time.monotonic() > end:
                    return
            return
        if self._pool is None:
            self._pool = self._executor.pool(len(tasks))
        max_pending, under_way = self._executor.max_pending, {task.key for task in self._waiting.values()}
        line = deque(task for task in tasks if task.key not in under_way)
        while line or self._waiting:
            while line and len(self._waiting) < max_pending:
                task = line.popleft()
                self._waiting[self._pool.submit(_run, self._folder, task)] = task
            ended = wait(self._waiting, max(0.0, end - time.monotonic()), FIRST_COMPLETED).done
            for future in ended:
                task, result = self._waiting.pop(future), future.result()
                if result is not None:
                    yield task, result[0]
            if not ended:
                return


def _run(folder: Path, task: BuildTask) -> tuple[Any] | None:
    """Does the task unless it is done; None when someone else is at it."""
    path = folder / f"{task.key}{_CLAIM}"
    claim = try_lock(path)
    if claim is None:
        return None
    with claim:
        if (result := _result(folder, task)) is None:
            value = task.run()
            with atomic_path(folder / f"{task.key}{_RESULT}") as scratch:
                scratch.write_text(json.dumps(value))
            result = (json.loads(json.dumps(value)),)  # what another start would read
        path.unlink(missing_ok=True)  # whoever claims it anew finds the result
        return result


def _listed(folder: Path) -> set[str]:
    """Keys of the tasks that are done."""
    with os.scandir(folder) as entries:
        return {entry.name.removesuffix(_RESULT) for entry in entries if entry.name.endswith(_RESULT)}


def _result(folder: Path, task: BuildTask) -> tuple[Any] | None:
    try:
        return (json.loads((folder / f"{task.key}{_RESULT}").read_bytes()),)
    except FileNotFoundError:
        return None


def _collected(folder: Path, tasks: Sequence[BuildTask], mine: dict[str, Any]) -> list[Any]:
    """The results of tasks that are all done; of many, by one command for all."""
    if len(tasks) <= _FEW:
        return [mine[task.key] if task.key in mine else _known(folder, task) for task in tasks]
    with lock(folder / f"{_ALL}{_CLAIM}"):
        if (known := _all_results(folder, tasks)) is not None:
            return known
        results = [mine[task.key] if task.key in mine else _known(folder, task) for task in tasks]
        with atomic_path(folder / _ALL) as path:
            path.write_text(json.dumps({"tasks": len(tasks), "results": results}))
    return results


def _known(folder: Path, task: BuildTask) -> Any:
    result = _result(folder, task)
    assert result is not None, task.key
    return result[0]


def _all_results(folder: Path, tasks: Sequence[BuildTask]) -> list[Any] | None:
    try:
        kept = json.loads((folder / _ALL).read_bytes())
    except FileNotFoundError:
        return None
    assert kept["tasks"] == len(tasks), folder  # of the same build
    results: list[Any] = kept["results"]
    return results
