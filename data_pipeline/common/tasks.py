"""Work split into tasks: run by an executor, by one command or by many in parallel, and never repeated.

A task's result is a file that appears when the task is done, so a killed command resumes where it stopped. The same
command started several times, on any machines that share the folder (a job array), shares the tasks: each task is
claimed by a lock that is released when its worker ends. Where locks don't work, two workers on one task waste time but
do no harm, since each writes the same files under unique temporary names and renames them.

An `Executor` (`data_pipeline/executors`) runs tasks. If it loses a worker and starts a task again, the result is the
same.

Each command takes tasks in a random order, so that commands seldom claim the same one. Which tasks are done is read
from the folder's listing now and then. The results of a stage of many tasks are read once, by the command that puts
them into one file for all.
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
_LISTING_SHARE = 0.05  # largest share of the time that listing may take
_SMALL = 2**22  # total size of tasks that run faster here than by an executor
_FEW = 64  # number of results that every command reads for itself


@dataclass(frozen=True)
class BuildTask:
    """One unit of work. `run` is picklable, returns plain values, and gives the same files and values each time."""

    key: str
    """Unique name among the tasks of its folder."""
    run: Callable[[], Any]
    size: int = 0
    """Bytes that it reads, or the stage's own unit, for the progress display. 0: unknown."""
    serial: bool = False
    """Whether it is one task however large the input, so that more machines don't make it faster."""


class Executor(Protocol):
    """Runs the tasks of a build."""

    def cores_per_task(self, tasks: int) -> int:
        """Number of cores that each task may use when a stage has this many tasks; at least 1."""

    @property
    def max_pending(self) -> int:
        """Number of tasks that may be submitted before one of them has ended. May change."""

    def accepts(self, tasks: Sequence[BuildTask]) -> bool:
        """Whether these tasks of a stage are worth submitting; otherwise they run in this process."""

    def pool(self, tasks: int) -> concurrent.futures.Executor:
        """The pool for a stage of this many tasks. Submitted work is picklable. A future raises what its task raised,
        or DataError when the task could not be run."""


def is_small(tasks: Sequence[BuildTask]) -> bool:
    """Whether these tasks run faster in this process than by an executor."""
    return all(task.size for task in tasks) and sum(task.size for task in tasks) < _SMALL


def run_tasks(
    tasks: Sequence[BuildTask],
    folder: Path,
    executor: Executor,
    on_done: Callable[[BuildTask, bool], None] = lambda task, new: None,
) -> list[Any]:
    """Runs `tasks` by `executor` and returns their results in order. `on_done` is called with each finished task, and
    whether it ran just now (True) or in an earlier command (False).

    Tasks with a result in `folder` are not run again. Raises what a task raised, after all running tasks have ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (all_results := _all_results(folder, tasks)) is not None:
        for task in tasks:
            on_done(task, False)
        return all_results
    own_results: dict[str, Any] = {}  # results of this command
    left = list(tasks)
    random.SystemRandom().shuffle(left)
    first, pause_s = True, _POLL_S
    with _Stage(folder, executor) as stage:
        while True:
            began = time.monotonic()
            listed = _listed(folder)
            for task in [task for task in left if task.key in listed]:
                on_done(task, not first)
            left = [task for task in left if task.key not in listed]
            if not left:
                break
            first, before = False, len(own_results)
            look_s = max(1.0, (time.monotonic() - began) / _LISTING_SHARE)
            for task, value in stage.results(left, time.monotonic() + look_s):
                own_results[task.key] = value
                on_done(task, True)
            left = [task for task in left if task.key not in own_results]
            if left and len(own_results) == before and not stage.busy:
                time.sleep(pause_s * random.uniform(0.5, 1))  # other commands have claimed what is left
                pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    return _collected(folder, tasks, own_results)


class _Stage:
    """Runs tasks in this process or, if the executor accepts them, in one pool for the whole stage."""

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
        """Whether submitted tasks are still running."""
        return bool(self._waiting)

    def results(self, tasks: Sequence[BuildTask], end: float) -> Iterator[tuple[BuildTask, Any]]:
        """Results as they arrive, until the time `end`. Tasks that other commands have claimed are skipped; tasks that
        are still running at the end yield their results at the next call."""
        if self._pool is None and not self._executor.accepts(tasks):
            for task in tasks:
                if (result := _run(self._folder, task)) is not None:
                    yield task, result[0]
                if time.monotonic() > end:
                    return
            return
        if self._pool is None:
            self._pool = self._executor.pool(len(tasks))
        max_pending, submitted = self._executor.max_pending, {task.key for task in self._waiting.values()}
        queue = deque(task for task in tasks if task.key not in submitted)
        while queue or self._waiting:
            while queue and len(self._waiting) < max_pending:
                task = queue.popleft()
                self._waiting[self._pool.submit(_run, self._folder, task)] = task
            ended = wait(self._waiting, max(0.0, end - time.monotonic()), FIRST_COMPLETED).done
            for future in ended:
                task, result = self._waiting.pop(future), future.result()
                if result is not None:
                    yield task, result[0]
            if not ended:
                return


def _run(folder: Path, task: BuildTask) -> tuple[Any] | None:
    """Runs the task unless it is done; None when another process has claimed it."""
    path = folder / f"{task.key}{_CLAIM}"
    claim = try_lock(path)
    if claim is None:
        return None
    with claim:
        if (result := _result(folder, task)) is None:
            value = task.run()
            with atomic_path(folder / f"{task.key}{_RESULT}") as scratch:
                scratch.write_text(json.dumps(value))
            result = (json.loads(json.dumps(value)),)  # what another command would read
        path.unlink(missing_ok=True)  # whoever claims it again finds the result
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


def _collected(folder: Path, tasks: Sequence[BuildTask], own_results: dict[str, Any]) -> list[Any]:
    """The results of tasks that are all done. If there are many, one command collects them into one file for all."""
    if len(tasks) <= _FEW:
        return [own_results[task.key] if task.key in own_results else _stored_result(folder, task) for task in tasks]
    with lock(folder / f"{_ALL}{_CLAIM}"):
        if (all_results := _all_results(folder, tasks)) is not None:
            return all_results
        results = [own_results[task.key] if task.key in own_results else _stored_result(folder, task) for task in tasks]
        with atomic_path(folder / _ALL) as path:
            path.write_text(json.dumps({"tasks": len(tasks), "results": results}))
    return results


def _stored_result(folder: Path, task: BuildTask) -> Any:
    result = _result(folder, task)
    assert result is not None, task.key
    return result[0]


def _all_results(folder: Path, tasks: Sequence[BuildTask]) -> list[Any] | None:
    try:
        stored = json.loads((folder / _ALL).read_bytes())
    except FileNotFoundError:
        return None
    assert stored["tasks"] == len(tasks), folder  # of the same build
    results: list[Any] = stored["results"]
    return results
