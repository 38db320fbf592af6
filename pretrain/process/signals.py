"""Being asked to stop: Ctrl-C, SIGTERM (Slurm, torchrun), SIGUSR1 (Slurm's warning) and SIGHUP (a terminal that is
closed, unless nohup has it ignored) set a flag that the loop reads.

Installed before the slow imports, and held back by the launcher (`local.py`) until then, so that a signal at start-up
is not lost. A second Ctrl-C ends the process at once.
"""

import ctypes
import signal
from types import FrameType

from data_pipeline.common import interrupt

SIGNALS = interrupt.SIGNALS
_PR_SET_PDEATHSIG = 1


class StopRequest:
    """`requested` turns true when one of SIGNALS arrives."""

    def __init__(self) -> None:
        self.requested = False
        for number in SIGNALS:
            signal.signal(number, self._receive)
        unblock()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_with_parent(number: int) -> None:
    """Has Linux send this process the signal `number` when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def unblock() -> None:
    """Lets through what the launcher held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
