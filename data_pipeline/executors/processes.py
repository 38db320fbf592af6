"""Tasks in worker processes of this command. Equal commands in parallel, here or on other machines, have their own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from data_pipeline.common.interrupt import signals_blocked
from data_pipeline.common.tasks import BuildTask, is_small

_AHEAD = 4  # queued tasks per process


class ProcessExecutor:
    """Runs tasks in up to `workers` processes, which end with their stage."""

    def __init__(self, workers: int) -> None:
        self._workers, self.max_pending = workers, _AHEAD * workers

    def cores_per_task(self, tasks: int) -> int:
        """The workers divided by the tasks, at least 1."""
        return max(1, self._workers // tasks)

    def accepts(self, tasks: Sequence[BuildTask]) -> bool:
        """False for small tasks, and for a single worker or task."""
        return self._workers > 1 and len(tasks) > 1 and not is_small(tasks)

    def pool(self, tasks: int) -> ProcessPoolExecutor:
        """A pool of processes, started on demand."""
        context = multiprocessing.get_context("forkserver")
        return _SignalFreePool(min(self._workers, tasks), context, _end_with_parent)


class _SignalFreePool(ProcessPoolExecutor):
    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        with signals_blocked():  # otherwise a terminal's Ctrl-C reaches every worker, and each prints a traceback
            return super().submit(work, *arguments, **named)


def _end_with_parent() -> None:
    """Ends this worker when its command ends, even if that is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
