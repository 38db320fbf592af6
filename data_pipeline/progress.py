"""One line on stderr that says how far a long job is: rewritten on a terminal, repeated now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Counts documents and bytes, and shows them with the rate."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        """`label` begins each line; `stream` is stderr unless given."""
        self._label, self._stream = label, stream or sys.stderr
        self._live = self._stream.isatty()
        self._interval_s = 0.2 if self._live else 10.0
        self._start = self._shown = time.monotonic()
        self._documents = self._bytes = 0

    def add(self, documents: int, text_bytes: int) -> None:
        """So much more is done."""
        self._documents += documents
        self._bytes += text_bytes
        if time.monotonic() - self._shown >= self._interval_s:
            self._shown = time.monotonic()
            self._stream.write(f"\r{self._line()}\x1b[K" if self._live else f"{self._line()}\n")
            self._stream.flush()

    def done(self) -> None:
        """Show the last counts, and end the line."""
        self._stream.write(f"\r{self._line()}\x1b[K\n" if self._live else f"{self._line()}\n")
        self._stream.flush()

    def _line(self) -> str:
        megabytes = self._bytes / 1e6
        rate = megabytes / max(time.monotonic() - self._start, 1e-9)
        return f"{self._label}: {self._documents:,} documents, {megabytes:,.1f} MB, {rate:,.1f} MB/s"
