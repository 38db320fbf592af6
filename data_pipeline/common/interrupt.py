"""Work that may be ended at any moment, as what is done is kept: a signal ends it at once, with a sentence.

Signals are noticed by a thread of their own: a handler of Python's waits until the main thread is back from whatever
library it is in, which may train a tokenizer for minutes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from data_pipeline.errors import ExitStatus

SIGNALS = (
    signal.SIGINT,  # Ctrl-C
    signal.SIGTERM,  # schedulers
    signal.SIGUSR1,  # Slurm, some time before
    *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []),  # a closed terminal; nohup
)
"""ask a process to stop"""
_TRACKED = "ignore:resource_tracker"


@contextmanager
def exit_on_signal(sentence: str) -> Iterator[None]:
    """Inside, a signal ends this process with `sentence` on stderr and `ExitStatus.STOPPED`; workers of `tasks.py` end
    with it. For the main thread, around work that a killed process would not harm."""
    _quiet_tracker()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watcher = threading.Thread(target=_watch, args=(reading, sentence), daemon=True)
    watcher.start()
    others = signal.set_wakeup_fd(writing)  # gets the number of each signal, whatever the main thread is doing
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(others)
        os.close(writing)  # which the thread takes for the end
        watcher.join()
        os.close(reading)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Inside, this thread gets no signal, and processes that it starts never do: theirs is the fate of their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(reading: int, sentence: str) -> None:
    while number := os.read(reading, 1):
        if number[0] in SIGNALS:
            with suppress(OSError):  # a terminal that is closed
                below = "\n" if sys.stderr.isatty() else ""  # the line that shows the progress
                print(f"{below}{sentence}", file=sys.stderr, flush=True)
            os._exit(ExitStatus.STOPPED)


def _quiet_tracker() -> None:
    """Python's tracker of semaphores, which is started with the first pool, cleans up behind a process that was ended,
    and is not to warn that it did."""
    kept = os.environ.get("PYTHONWARNINGS")
    if _TRACKED not in (kept or ""):
        os.environ["PYTHONWARNINGS"] = f"{kept},{_TRACKED}" if kept else _TRACKED
