"""Work that is cut into tasks: done by several processes, of one command or of many, and never done again.

A task's result is a file that appears once the task is done, so a killed command goes on where it stopped. The same
command started several times, on as many machines as see the folder (a job array), shares the tasks: each is claimed by
a lock that its worker's end releases. Two workers on one task, where locks don't reach, waste time and make no other
file, as a task writes equal files under names of its own and renames them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import written
from data_pipeline.common.interrupt import held_back
from data_pipeline.common.locks import try_lock

_RESULT, _CLAIM = ".done.json", ".claim"
_POLL_S, _LONGEST_POLL_S = 0.25, 8.0
_SMALL = 2**22  # work that is done sooner than processes start


@dataclass(frozen=True)
class BuildTask:
    """One piece of work. `run` is picklable, returns plain values, and gives equal files and values each time."""

    key: str
    """Names it among the tasks of its folder."""
    run: Callable[[], Any]
    size: int = 0
    """Bytes that it reads, or whatever the stage counts in: for the progress shown. 0: not known."""


def run_tasks(
    tasks: Sequence[BuildTask],
    folder: Path,
    workers: int,
    done: Callable[[BuildTask, bool], None] = lambda task, new: None,
) -> list[Any]:
    """The results of `tasks`, in order, by up to `workers` processes; `done` is told of each as it ends, and whether it
    was done just now or by an earlier start.

    Those with a result in `folder` are not run again. Raises what a task raised, once the others under way have ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    first, pause_s = True, _POLL_S
    while len(found) < len(tasks):
        before = len(found)
        for task in tasks:
            if task.key not in found and (result := _result(folder, task)) is not None:
                found[task.key] = result[0]
                done(task, not first)
        first = False
        left = [task for task in tasks if task.key not in found and _is_free(folder, task)]
        small = all(task.size for task in left) and sum(task.size for task in left) < _SMALL
        if workers == 1 or len(left) == 1 or small:
            for task in left:
                if (result := _run(folder, task)) is not None:
                    found[task.key] = result[0]
                    done(task, True)
        elif left:
            for task, value in _in_processes(folder, left, workers):
                found[task.key] = value
                done(task, True)
        if len(found) == before < len(tasks):
            time.sleep(pause_s)  # another command has claimed what is left
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    return [found[task.key] for task in tasks]


def _in_processes(folder: Path, tasks: list[BuildTask], workers: int) -> Iterator[tuple[BuildTask, Any]]:
    """Results as they come. Tasks that other commands have claimed are left out."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _end_with_parent) as pool:
        with held_back():  # else a terminal's Ctrl-C reaches every worker, and each has a traceback to show
            waiting: dict[Future[tuple[Any] | None], BuildTask] = {
                pool.submit(_run, folder, task): task for task in tasks
            }
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    task, result = waiting.pop(future), future.result()
                    if result is not None:
                        yield task, result[0]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run(folder: Path, task: BuildTask) -> tuple[Any] | None:
    """Does the task unless it is done; None when someone else is at it."""
    claim = try_lock(_claim(folder, task))
    if claim is None:
        return None
    with claim:
        if (result := _result(folder, task)) is not None:
            return result
        value = task.run()
        with written(folder / f"{task.key}{_RESULT}") as path:
            path.write_text(json.dumps(value))
        return (json.loads(json.dumps(value)),)  # what another start would read


def _is_free(folder: Path, task: BuildTask) -> bool:
    """Whether no one seems to be at it."""
    claim = try_lock(_claim(folder, task))
    if claim is not None:
        claim.release()
    return claim is not None


def _claim(folder: Path, task: BuildTask) -> Path:
    return folder / f"{task.key}{_CLAIM}"


def _result(folder: Path, task: BuildTask) -> tuple[Any] | None:
    try:
        return (json.loads((folder / f"{task.key}{_RESULT}").read_bytes()),)
    except FileNotFoundError:
        return None


def _end_with_parent() -> None:
    """A worker whose command was killed must not go on by itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
