"""Reports of the main thread to the watchdog: its activity, and when an exchange between all ranks is done.

    watchdog.kick("step 12", 12)            the main thread begins an activity
    watchdog.kick()                         it makes progress with the same activity
    watchdog.collective_done()              all ranks took part in an exchange: none can be far behind
    with watchdog.allow_slow_io(): ...      file access may take hours
    with watchdog.waiting_for(thread): ...  the main thread makes progress when `thread` does
    with watchdog.stop_on_error(): ...      an error that leaves this block stops the watchdog

A call costs a fraction of a microsecond and touches no file: the watchdog's thread (`watchdog_thread.py`) polls.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ActivityRecord:
    """Activity of the main thread, with counters by which a poll sees progress."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to the initial values: a process may start several runs."""
        self.kicks = 0
        self.collectives = 0
        self.step = 0
        self.activity = "starting"
        self.io_threads: set[int] = set()
        """idents of threads that read or write files"""
        self.awaited_thread: int | None = None
        """ident of the thread that the main thread waits for"""
        self.failing = False
        """the main thread is ending with an error, which may take any time"""

    def in_slow_io(self) -> bool:
        """Whether the main thread reads or writes files, or waits for a thread that does."""
        return threading.main_thread().ident in self.io_threads or self.awaited_thread in self.io_threads


record = ActivityRecord()
"""the record of this process"""


def kick(activity: str | None = None, step: int | None = None) -> None:
    """Reports progress of the main thread, and its new `activity` and training step where they are given."""
    record.kicks += 1
    if activity is not None:
        record.activity = activity
    if step is not None:
        record.step = step


def collective_done() -> None:
    """Reports that every rank took part in an exchange."""
    record.kicks += 1
    record.collectives += 1


@contextmanager
def allow_slow_io() -> Iterator[None]:
    """Inside, this thread reads or writes files, without waiting for other ranks."""
    ident = threading.get_ident()
    outer = ident in record.io_threads
    record.io_threads.add(ident)
    try:
        yield
    finally:
        record.kicks += 1
        if not outer:
            record.io_threads.discard(ident)


@contextmanager
def waiting_for(thread: threading.Thread) -> Iterator[None]:
    """Inside, the main thread waits for `thread`. In any other thread this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    record.awaited_thread = thread.ident
    try:
        yield
    finally:
        record.awaited_thread = None
        record.kicks += 1


@contextmanager
def stop_on_error() -> Iterator[None]:
    """Stops the watchdog when an error leaves the block: reporting the error may take any time."""
    try:
        yield
    except BaseException:
        record.failing = True
        raise
