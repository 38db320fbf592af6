"""A deadline for waiting on other ranks, with a message now and then while this rank waits."""

import sys
import time
from collections.abc import Callable

FIRST_S, LONGEST_S = 10.0, 60.0
"""seconds until the first message, and at most between two of them"""


class Deadline:
    """The moment `limit_s` from now. `verbose`: whether this rank prints what it waits for."""

    def __init__(self, limit_s: float, verbose: bool = True) -> None:
        self.limit_s = limit_s
        self._verbose, self._pause_s = verbose, FIRST_S
        self._end = time.monotonic() + limit_s
        self._next = time.monotonic() + self._pause_s

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        return self.remaining_s == 0

    @property
    def next_wait_s(self) -> float:
        """Seconds to wait before the deadline expires or the next message is due."""
        return max(0.01, min(self.remaining_s, self._next - time.monotonic()))

    def report(self, waiting: Callable[[], str]) -> None:
        """Prints to stderr what this rank waits for, if a message is due."""
        if time.monotonic() < self._next:
            return
        self._pause_s = min(2 * self._pause_s, LONGEST_S)
        self._next = time.monotonic() + self._pause_s
        if self._verbose:
            sys.stderr.write(f"pretrain: {waiting()}\n")  # in one write, as other ranks write too
            sys.stderr.flush()
