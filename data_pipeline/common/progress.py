"""Progress of a long job of many tasks: one live line on a terminal, a line every 10 seconds in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from data_pipeline.common.live_line import LiveLine

_LOG_INTERVAL_S = 10.0


class TaskProgress:
    """Counts tasks and their size (bytes or tokens), and shows them with the rate and the remaining time."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        """`label` begins each line; `stream` is stderr by default."""
        self._label, self._line = label, LiveLine(stream or sys.stderr)
        self._start = self._logged = time.monotonic()
        self._tasks = self._size = self._earlier = self._total = 0

    def expect(self, size: int) -> None:
        """Sets the total size."""
        self._total = size

    def add(self, tasks: int, size: int, new: bool = True) -> None:
        """Adds finished tasks; not `new`: an earlier command finished them, so they don't count in the rate."""
        self._tasks += tasks
        self._size += size
        self._earlier += 0 if new else size
        if self._line.is_live:
            self._line.show(self._describe())
        elif time.monotonic() - self._logged >= _LOG_INTERVAL_S:
            self._logged = time.monotonic()
            self._line.say(self._describe())

    def done(self) -> None:
        """Shows the final counts and ends the line."""
        if self._line.is_live:
            self._line.show(self._describe())
            self._line.close()
        else:
            self._line.say(self._describe())

    def _describe(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        line = f"{self._label}: {self._tasks:,} done"
        new = self._size - self._earlier
        if self._size:
            line += f", {self._size / 1e6:,.1f} M, {new / 1e6 / seconds:,.1f} M/s"
        if new and self._size < self._total:
            line += f", {seconds * (self._total - self._size) / new:,.0f} s left"
        return f"{line} ({seconds:.1f} s)"
