"""What to do when an attempt has ended: a function of the attempts alone, so that every start of the supervisor, also
on another machine, decides alike.

- done (0), or a mistake of the user (2): over.
- stopped (75): it saved; whoever asked for the stop knows what comes next.
- failed: started again from the newest checkpoint, at most `restarts` times without a new checkpoint in between. What
  fails twice at the same step with the same words of its own is no matter of machines and is not tried a third time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from launch.attempts import Attempt
from launch.run_files import HUNG

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_OF_MACHINES = ("LostPeersError", HUNG, "RendezvousError")
"""how reasons begin that say nothing of the run itself"""


@dataclass(frozen=True)
class Decision:
    """What comes next, and why, in a sentence."""

    next: Literal["over", "stopped", "again"]
    why: str
    status: int = 0
    """the supervisor's own, where it is over"""
    pause_s: float = 0.0
    """before the next start"""


def decide(attempts: Sequence[Attempt], restarts: int) -> Decision:
    """After the last of `attempts` (oldest first; at least one)."""
    last = attempts[-1]
    if last.ending == "done":
        return Decision("over", "done")
    if last.ending == "config":
        return Decision("over", "the command or its config is wrong, which a new start would not mend", 2)
    if last.ending == "stopped":
        return Decision("stopped", f"stopped after saving{_at(last)}")
    failed = list(takewhile(lambda attempt: attempt.ending == "failed", reversed(attempts)))
    alike = list(takewhile(lambda attempt: (attempt.step, attempt.reason) == (last.step, last.reason), failed))
    if len(alike) > 1 and last.reason is not None and not last.reason.startswith(_OF_MACHINES):
        return Decision("over", f"failed twice in the same way{_same(last)}: {last.reason}", 1)
    fruitless = len(list(takewhile(lambda attempt: attempt.saved == last.saved, failed)))
    said = _without_advice(last.reason) if last.reason is not None else _silent(last.status)
    if fruitless > restarts:
        times = "once" if fruitless == 1 else f"{fruitless} times"
        return Decision("over", f"failed {times} without a new checkpoint, the last time{_at(last)}: {said}", 1)
    pause_s = min(_FIRST_PAUSE_S * 2 ** (fruitless - 1), _LONGEST_PAUSE_S)
    from_step = "the beginning" if last.saved is None else f"step {last.saved:,}"
    why = f"failed{_at(last)} ({said}); start {fruitless} of {restarts} again, from {from_step}"
    return Decision("again", why, pause_s=pause_s)


def _same(attempt: Attempt) -> str:
    if not attempt.step:
        return " before its first step, so another start does not help"
    return (
        f"{_at(attempt)}, on the same documents (`pretrain data trace` shows them), which is a problem of data or "
        "numbers, not of machines"
    )


def _at(attempt: Attempt) -> str:
    return f" at step {attempt.step:,}" if attempt.step else ""


def _without_advice(reason: str) -> str:
    """Less what the user would have to do without a supervisor."""
    return reason.partition("; the same command ")[0]


def _silent(status: int) -> str:
    return f"it said nothing; exit status {status}" + (f", signal {status - 128}" if status > 128 else "")
