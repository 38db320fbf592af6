"""Tasks in this process, one after the other, with the processor time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from data_pipeline.common.tasks import BuildTask


@dataclass
class TimedStage:
    """The cost of a stage's tasks."""

    tasks: int = 0
    size: int = 0
    """Sum of BuildTask.size."""
    seconds: float = 0.0
    """Processor seconds of all threads."""
    serial: bool = False
    """Whether it is one task however large the input."""


@dataclass
class TimedExecutor:
    """Runs tasks in this process and measures them; `stages` has the stages by the names of their folders, in order."""

    stages: dict[str, TimedStage] = field(default_factory=dict)
    max_pending = 1

    def cores_per_task(self, tasks: int) -> int:
        """One, so that processor seconds are those of a single core."""
        return 1

    def accepts(self, tasks: Sequence[BuildTask]) -> bool:
        """True: all tasks are measured."""
        return True

    def pool(self, tasks: int) -> _InlinePool:
        """A pool that runs each task in this process."""
        return _InlinePool(self.stages)


class _InlinePool(Executor):
    def __init__(self, stages: dict[str, TimedStage]) -> None:
        self._stages = stages

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Runs the work before it returns."""
        folder, task = arguments
        found, began = Future[Any](), time.process_time()
        try:
            found.set_result(work(*arguments, **named))
        except Exception as error:
            found.set_exception(error)
        stage = self._stages.setdefault(folder.name, TimedStage())
        stage.tasks, stage.size = stage.tasks + 1, stage.size + task.size
        stage.seconds += time.process_time() - began
        stage.serial = task.serial
        return found
