"""Immediate exit on a signal, with a message, for work that can be killed at any moment since its results are kept.

A separate thread watches for signals: a Python signal handler runs only after the main thread returns from the library
that it is in, which may train a tokenizer for minutes.
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
    signal.SIGUSR1,  # Slurm's warning before the time limit
    *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []),  # a closed terminal; nohup
)
"""Signals that ask a process to stop."""
_TRACKED = "ignore:resource_tracker"


@contextmanager
def exit_on_signal(sentence: str) -> Iterator[None]:
    """Inside, a signal ends this process with `sentence` on stderr and `ExitStatus.STOPPED`, and the workers of
    `tasks.py` with it. For the main thread, around work that can be killed without harm."""
    _quiet_tracker()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watcher = threading.Thread(target=_watch, args=(reading, sentence), daemon=True)
    watcher.start()
    previous_fd = signal.set_wakeup_fd(writing)  # receives the number of each signal, whatever the main thread does
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(writing)  # ends the thread
        watcher.join()
        os.close(reading)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Inside, this thread receives no signals, and processes that it starts never do: they end with their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(reading: int, sentence: str) -> None:
    while number := os.read(reading, 1):
        if number[0] in SIGNALS:
            with suppress(OSError):  # a terminal that is closed
                below = "\n" if sys.stderr.isatty() else ""  # below the progress line
                print(f"{below}{sentence}", file=sys.stderr, flush=True)
            os._exit(ExitStatus.STOPPED)


def _quiet_tracker() -> None:
    """Silences Python's resource tracker, which otherwise warns when it cleans up after a process that was ended."""
    kept = os.environ.get("PYTHONWARNINGS")
    if _TRACKED not in (kept or ""):
        os.environ["PYTHONWARNINGS"] = f"{kept},{_TRACKED}" if kept else _TRACKED
