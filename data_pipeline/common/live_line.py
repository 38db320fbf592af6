"""A line that rewrites itself on a terminal, below permanent lines; a log gets only the permanent lines.

tqdm and rich do the same on a terminal, but neither's bar is readable in a log file: tqdm's is one long line of
carriage returns, and rich's appears only at the end.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from contextlib import suppress
from typing import TextIO

INTERVAL_S = 0.1
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class LiveLine:
    """The line and its stream. Safe to share between threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_live = stream.isatty()
        """Whether lines can be rewritten: the stream is a terminal."""
        self.has_colour = self.is_live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        """Whether output may be coloured (https://no-color.org)."""
        self._line = ""
        self._drawn_s = -INTERVAL_S
        self._lock = threading.Lock()

    def show(self, line: str, now: bool = False) -> None:
        """Sets the live line; drawn at most every INTERVAL_S, unless `now`. Not written to a log."""
        with self._lock:
            self._line = line
            if now or time.monotonic() - self._drawn_s >= INTERVAL_S:
                self._draw()

    def say(self, text: str) -> None:
        """Writes a permanent line above the live one."""
        with self._lock:
            self._write(f"\r{text}\x1b[K\n" if self.is_live else f"{text}\n")
            self._draw()

    def clear(self) -> None:
        """Erases the live line, so that other code can write a line."""
        with self._lock:
            if self.is_live:
                self._write("\r\x1b[K")

    def close(self) -> None:
        """Leaves the last state on the terminal and ends its line."""
        with self._lock:
            if self.is_live and self._line:
                self._draw()
                self._write("\n")
            self._line = ""

    def _draw(self) -> None:
        if self.is_live and self._line:
            # A line longer than the terminal would wrap, and a carriage return returns to the start of its last row
            # only.
            width = shutil.get_terminal_size().columns - 1
            plain = _STYLE.sub("", self._line)
            self._write(f"\r{self._line if len(plain) <= width else plain[:width]}\x1b[K")
            self._drawn_s = time.monotonic()

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk or a closed pipe is no reason to end the work
            self._stream.write(text)
            self._stream.flush()
