"""A process that restarts a function whenever it is killed, and resumes it when it is stopped.

    status = guard(work, say)     # exit status of `work`, which runs in a child process

A job's supervisor can be killed as its ranks can: by hand, or when memory runs out. The process that Slurm runs as the
job's script therefore supervises the supervisor, and does nothing else.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from pretrain.process.signals import SIGNALS, end_with_parent, unblock

_MOST, _SOON_S = 5, 60.0
"""Deaths in a row, each within so many seconds of a start, after which it gives up."""
_STOPPED_S = 10.0
"""Seconds after which a stopped process (SIGSTOP) is resumed."""


def guard(work: Callable[[], int], say: Callable[[str], None]) -> int:
    """Runs `work` in a child process until that exits by itself, and returns its status. `work` is restarted whenever
    its process is killed, and resumed when it is stopped. Signals that request a stop are forwarded to it; it has to
    unblock them once it can handle them."""
    child = _GuardedProcess()
    for number in SIGNALS:
        signal.signal(number, child.pass_on)
    soon = 0
    while True:
        began = time.monotonic()
        status = child.run(work, say)
        if status >= 0:
            return status
        soon = soon + 1 if time.monotonic() - began < _SOON_S else 1
        if soon == _MOST:
            say(f"the supervisor was ended by signal {-status}, {soon} times in a row soon after its start")
            return 128 - status
        say(f"the supervisor was ended by signal {-status}: it restarts")
        time.sleep(1.0)


class _GuardedProcess:
    """Child process, and the last signal sent to it."""

    def __init__(self) -> None:
        self._pid, self._signal = 0, 0

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def run(self, work: Callable[[], int], say: Callable[[str], None]) -> int:
        """Forks once: the exit status, or the negative number of the signal that ended it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # held back until either side can handle it
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.setsid()  # a signal to our group reaches it once, from us
                end_with_parent(signal.SIGTERM)
                status = work()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        if self._signal:
            os.kill(self._pid, self._signal)
        unblock()
        while True:
            _, wait_status = os.waitpid(self._pid, os.WUNTRACED)
            if not os.WIFSTOPPED(wait_status):
                self._pid = 0
                return os.waitstatus_to_exitcode(wait_status)
            say(f"the supervisor was stopped by signal {os.WSTOPSIG(wait_status)}: it resumes in {_STOPPED_S:g} s")
            time.sleep(_STOPPED_S)
            os.kill(self._pid, signal.SIGCONT)
