"""One line on stderr that says how far a long job is: rewritten on a terminal, repeated now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Counts tasks and what they take (bytes, or tokens), and shows them with the rate and the time that is left."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        """`label` begins each line; `stream` is stderr unless given."""
        self._label, self._stream = label, stream or sys.stderr
        self._live = self._stream.isatty()
        self._interval_s = 0.2 if self._live else 10.0
        self._start = self._shown = time.monotonic()
        self._tasks = self._size = self._earlier = self._whole = 0

    def expect(self, size: int) -> None:
        """How much there is to do in all."""
        self._whole = size

    def add(self, tasks: int, size: int, new: bool = True) -> None:
        """So much more is done; if not `new`, by an earlier start."""
        self._tasks += tasks
        self._size += size
        self._earlier += 0 if new else size
        if time.monotonic() - self._shown >= self._interval_s:
            self._shown = time.monotonic()
            self._stream.write(f"\r{self._line()}\x1b[K" if self._live else f"{self._line()}\n")
            self._stream.flush()

    def done(self) -> None:
        """Show the last counts, and end the line."""
        self._stream.write(f"\r{self._line()}\x1b[K\n" if self._live else f"{self._line()}\n")
        self._stream.flush()

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        line = f"{self._label}: {self._tasks:,} done"
        new = self._size - self._earlier
        if self._size:
            line += f", {self._size / 1e6:,.1f} M, {new / 1e6 / seconds:,.1f} M/s"
        if new and self._size < self._whole:
            line += f", {seconds * (self._whole - self._size) / new:,.0f} s left"
        return f"{line} ({seconds:.1f} s)"
