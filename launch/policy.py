"""Decision of the supervisor when an attempt has ended: a function of the attempts alone, so that a restarted
supervisor, also on another machine, decides the same.

- done (0), or a mistake of the user (2): over.
- stopped (75): the run has saved, and resumes later.
- failed: restarted from the newest checkpoint, at most `restarts` times without a new checkpoint. A run that fails
  twice at the same step with the same error does not fail because of a machine, and is not restarted.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from launch.attempts import Attempt
from launch.run_progress import HUNG

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MACHINE_ERRORS = ("LostPeersError", HUNG, "RendezvousError", "MiscomputedError")
"""Beginnings of errors that a machine causes, not the run itself."""
_ADVICE = re.compile("; (?:run )?the same command ")


@dataclass(frozen=True)
class Decision:
    """Next action of the supervisor, and its reason in a sentence."""

    next: Literal["over", "stopped", "again"]
    why: str
    status: int = 0
    """Exit status of the supervisor, if it is over."""
    pause_s: float = 0.0
    """Seconds before the next start."""


def decide(attempts: Sequence[Attempt], restarts: int) -> Decision:
    """Decision after the last of `attempts` (oldest first; at least one)."""
    last = attempts[-1]
    if last.ending == "done":
        return Decision("over", "done")
    if last.ending == "config":
        return Decision("over", "the command or its config is wrong, which a restart would not fix", 2)
    if last.ending == "stopped":
        return Decision("stopped", f"stopped after saving{_at(last)}")
    failed = list(takewhile(lambda attempt: attempt.ending == "failed", reversed(attempts)))
    alike = list(takewhile(lambda attempt: (attempt.step, attempt.reason) == (last.step, last.reason), failed))
    if len(alike) > 1 and last.reason is not None and not last.reason.startswith(_MACHINE_ERRORS):
        return Decision("over", f"failed twice in the same way{_same(last)}: {last.reason}", 1)
    fruitless = len(list(takewhile(lambda attempt: attempt.saved == last.saved, failed)))
    problem = _without_advice(last.reason) if last.reason is not None else _silent(last.status)
    if fruitless > restarts:
        times = "once" if fruitless == 1 else f"{fruitless} times"
        return Decision("over", f"failed {times} without a new checkpoint, the last time{_at(last)}: {problem}", 1)
    pause_s = min(_FIRST_PAUSE_S * 2 ** (fruitless - 1), _LONGEST_PAUSE_S)
    from_step = "the beginning" if last.saved is None else f"step {last.saved:,}"
    why = f"failed{_at(last)} ({problem}); restart {fruitless} of {restarts}, from {from_step}"
    return Decision("again", why, pause_s=pause_s)


def _same(attempt: Attempt) -> str:
    if not attempt.step:
        return " before its first step, so a restart does not help"
    return (
        f"{_at(attempt)}, on the same documents (`pretrain data trace` shows them), which is a problem of data or "
        "numbers, not of machines"
    )


def _at(attempt: Attempt) -> str:
    return f" at step {attempt.step:,}" if attempt.step else ""


def _without_advice(reason: str) -> str:
    """Error without the advice to run the command again, which the supervisor does."""
    return _ADVICE.split(reason)[0]


def _silent(status: int) -> str:
    """Reason of an attempt that reported no error: its exit status. A status above 128 is a signal's where there is
    one."""
    ended_by = f", signal {status - 128}" if status - 128 in signal.valid_signals() else ""
    return f"no error was reported; exit status {status}{ended_by}"
