"""What this process is at work on, in its own words: what the hang watch and the heartbeat go by.

    beat("step 12", 12)         the main thread does something new
    tick()                      it is a piece further
    met()                       all ranks have just met: none can be far behind
    with at_files(): ...        a disk may take as long as it takes
    with waiting_for(t): ...    the main thread goes on when thread `t` does
    with watched(): ...         an error that leaves this ends the watching

Saying so costs a fraction of a microsecond and reaches no file: `watch.py` looks now and then.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Beats:
    """Counts, so that whoever looks sees whether there was something new."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Back to the beginning: a process may start several runs."""
        self.count = 0
        self.meetings = 0
        self.step = 0
        self.doing = "starting"
        self.files: set[int] = set()
        """idents of threads that are at work on files"""
        self.awaited: int | None = None
        """ident of the thread that the main thread waits for"""
        self.failed = False
        """the main thread is on its way out with an error: for how long is no matter of the others"""

    def at_files(self) -> bool:
        """Whether the main thread is at work on files, or waits for a thread that is."""
        return threading.main_thread().ident in self.files or self.awaited in self.files


own = Beats()
"""this process's"""


def beat(doing: str, step: int | None = None) -> None:
    """The main thread begins what `doing` says; from `step` on, if one is given."""
    own.count += 1
    own.doing = doing
    if step is not None:
        own.step = step


def tick() -> None:
    """The main thread is a piece further with what it does."""
    own.count += 1


def met() -> None:
    """Every rank has just taken part in an exchange."""
    own.count += 1
    own.meetings += 1


@contextmanager
def at_files() -> Iterator[None]:
    """Inside, this thread reads or writes files by itself, without waiting for other ranks."""
    ident = threading.get_ident()
    outer = ident in own.files
    own.files.add(ident)
    try:
        yield
    finally:
        own.count += 1
        if not outer:
            own.files.discard(ident)


@contextmanager
def waiting_for(thread: threading.Thread) -> Iterator[None]:
    """Inside, the main thread waits for what `thread` does. Other threads may wait unseen."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own.awaited = thread.ident
    try:
        yield
    finally:
        own.awaited = None
        own.count += 1


@contextmanager
def watched() -> Iterator[None]:
    """Whoever leaves this by an error has something to say, and takes the time that it takes."""
    try:
        yield
    except BaseException:
        own.failed = True
        raise
