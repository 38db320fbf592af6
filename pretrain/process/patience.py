"""Waiting for other ranks: until when, and when to say meanwhile that this one waits."""

import sys
import time
from collections.abc import Callable

FIRST_S, LONGEST_S = 10.0, 60.0
"""until a waiting rank first says so, and the longest that it then is silent"""


class Patience:
    """Begins now and ends after `limit_s`. `speaks`: whether this rank is one that says that it waits."""

    def __init__(self, limit_s: float, speaks: bool = True) -> None:
        self.limit_s = limit_s
        self._speaks, self._pause_s = speaks, FIRST_S
        self._end = time.monotonic() + limit_s
        self._next = time.monotonic() + self._pause_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        return self.left_s == 0

    @property
    def turn_s(self) -> float:
        """How long to wait until the end, or until it is time to say so."""
        return max(0.01, min(self.left_s, self._next - time.monotonic()))

    def say(self, waiting: Callable[[], str]) -> None:
        """What this rank is waiting for, on stderr, if it is time to."""
        if time.monotonic() < self._next:
            return
        self._pause_s = min(2 * self._pause_s, LONGEST_S)
        self._next = time.monotonic() + self._pause_s
        if self._speaks:
            sys.stderr.write(f"pretrain: {waiting()}\n")  # at once, as other ranks write too
            sys.stderr.flush()
