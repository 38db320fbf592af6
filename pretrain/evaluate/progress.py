"""Progress of an evaluation: one line that rewrites itself on a terminal, a line now and then in a log."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from data_pipeline.common.live_line import LiveLine
from pretrain.observe.progress import duration

_LOG_INTERVAL_S = 60.0


class EvaluationProgress:
    """Progress display that `evaluate` calls, within a `with`. A log gets a line when the task or its shots change, and
    one a minute. Only the rank that `shows` it prints."""

    def __init__(
        self, shows: bool = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shows, self._line, self._clock = shows, LiveLine(stream or sys.stdout), clock
        self._what = ""
        self._begun_s = self._logged_s = 0.0
        self._before = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Reports that `done` of `total` documents of `what` (a task, shots) are scored; a `total` of 0: unknown.
        `0 of 63` is not printed, as it reads like a score. The time left is that of `what` alone."""
        if not self._shows:
            return
        now = self._clock()
        new = what != self._what
        if new:
            self._what, self._before, self._begun_s = what, done, now
        line = what if not total else f"{what}: {total:,} documents"
        if total and done:
            line = f"{what}: {done:,} of {total:,} documents"
        if done > self._before:
            line += f", {duration((now - self._begun_s) * (total - done) / (done - self._before))} left"
        if self._line.is_live:
            self._line.show(line, now=True)
        elif new or now - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now
            self._line.say(line)

    def __enter__(self) -> "EvaluationProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()
