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

from pretrain.process.signals import SIGNALS, end_with_parent

_MOST, _SOON_S = 5, 60.0
"""Deaths in a row, each within so many seconds of a start, after which it gives up."""
_STOPPED_S = 10.0
"""Seconds after which a stopped process (SIGSTOP) is resumed."""
_LOOK_S = 1.0
"""Seconds after which it looks at the process without a signal: another thread may have taken a SIGCHLD."""
_AWAITED = {*SIGNALS, signal.SIGCHLD}


def guard(work: Callable[[], int], say: Callable[[str], None]) -> int:
    """Runs `work` in a child process until that exits by itself, and returns its status. `work` is restarted whenever
    its process is killed, and resumed when it is stopped. Signals that request a stop are forwarded to it; it has to
    unblock them once it can handle them. They stay blocked in this process, which must have no other threads: a handler
    could run just before a call that waits, and a signal would be forwarded when that call returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no status can be read
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    requested, soon = 0, 0
    while True:
        began = time.monotonic()
        pid = _fork(work)
        if requested:  # of the one before
            os.kill(pid, requested)
        while True:
            awaited = signal.sigtimedwait(_AWAITED, _LOOK_S)
            if awaited is not None and awaited.si_signo != signal.SIGCHLD:
                requested = awaited.si_signo
                os.kill(pid, requested)
            elif (status := _status(pid, say)) is not None:
                break
        if status >= 0:
            return status
        soon = soon + 1 if time.monotonic() - began < _SOON_S else 0
        if soon == _MOST:
            say(f"the supervisor was ended by signal {-status}, {soon} times in a row soon after its start")
            return 128 - status
        say(f"the supervisor was ended by signal {-status}: it restarts")
        time.sleep(1.0)


def _fork(work: Callable[[], int]) -> int:
    """The number of a process that exits with the status of `work`."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()  # a signal to our group reaches it once, from us
            end_with_parent(signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _status(pid: int, say: Callable[[str], None]) -> int | None:
    """The exit status of the process, or the negative number of the signal that ended it; None: it runs. If it is
    stopped, it is resumed."""
    changed, wait_status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if not changed:
        return None
    if not os.WIFSTOPPED(wait_status):
        return os.waitstatus_to_exitcode(wait_status)
    say(f"the supervisor was stopped by signal {os.WSTOPSIG(wait_status)}: it resumes in {_STOPPED_S:g} s")
    time.sleep(_STOPPED_S)
    os.kill(pid, signal.SIGCONT)
    return None
