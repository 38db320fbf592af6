"""Tasks in processes of this command. Equal commands beside it, here or on other machines, have theirs."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from data_pipeline.common.interrupt import signals_blocked
from data_pipeline.common.tasks import BuildTask, is_small

_AHEAD = 4  # tasks that wait in line for each process


class ProcessExecutor:
    """As many as told; those of a stage end with it."""

    def __init__(self, workers: int) -> None:
        self._workers, self.max_pending = workers, _AHEAD * workers

    def cores_per_task(self, tasks: int) -> int:
        """What fewer tasks than processes leave."""
        return max(1, self._workers // tasks)

    def accepts(self, tasks: Sequence[BuildTask]) -> bool:
        """Not for little work, nor where there would be one process."""
        return self._workers > 1 and len(tasks) > 1 and not is_small(tasks)

    def pool(self, tasks: int) -> ProcessPoolExecutor:
        """Starts them when they have something to do."""
        context = multiprocessing.get_context("forkserver")
        return _Pool(min(self._workers, tasks), context, _end_with_parent)


class _Pool(ProcessPoolExecutor):
    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        with signals_blocked():  # else a terminal's Ctrl-C reaches every worker, and each has a traceback to show
            return super().submit(work, *arguments, **named)


def _end_with_parent() -> None:
    """A worker whose command was killed must not go on by itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
