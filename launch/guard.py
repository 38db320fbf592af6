"""A process that comes back, whoever kills or stops it.

    status = guard(work, say)     # of `work`, in a process of its own

A job's supervisor can be killed as its ranks can: by hand, or where memory runs out. What Slurm knows as the job's
script is therefore a process that looks after the supervisor and does nothing else.
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
"""deaths, each so soon after a start, of which the last is the end"""
_STOPPED_S = 10.0
"""for which it may be stopped, as by SIGSTOP"""


def guard(work: Callable[[], int], say: Callable[[str], None]) -> int:
    """Runs `work` in a process of its own until that ends by itself, and returns its status: `work` begins again
    whenever its process is killed, and goes on when it is stopped. Signals that ask to stop go on to it; it has to
    unblock them once it can take them."""
    watched = _Watched()
    for number in SIGNALS:
        signal.signal(number, watched.pass_on)
    soon = 0
    while True:
        began = time.monotonic()
        status = watched.run(work, say)
        if status >= 0:
            return status
        soon = soon + 1 if time.monotonic() - began < _SOON_S else 1
        if soon == _MOST:
            say(f"the supervisor was ended by signal {-status}, {soon} times in a row soon after its start")
            return 128 - status
        say(f"the supervisor was ended by signal {-status}: it begins again")
        time.sleep(1.0)


class _Watched:
    """The process, and what it was last asked."""

    def __init__(self) -> None:
        self._pid, self._asked = 0, 0

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        self._asked = number
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def run(self, work: Callable[[], int], say: Callable[[str], None]) -> int:
        """One life of it: its status, or the negative number of the signal that ended it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # one that comes now waits until either side can take it
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.setsid()  # a signal to our group comes to it once, from us
                end_with_parent(signal.SIGTERM)
                status = work()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        if self._asked:
            os.kill(self._pid, self._asked)
        unblock()
        while True:
            _, found = os.waitpid(self._pid, os.WUNTRACED)
            if not os.WIFSTOPPED(found):
                self._pid = 0
                return os.waitstatus_to_exitcode(found)
            say(f"the supervisor was stopped by signal {os.WSTOPSIG(found)}: it goes on in {_STOPPED_S:g} s")
            time.sleep(_STOPPED_S)
            os.kill(self._pid, signal.SIGCONT)
