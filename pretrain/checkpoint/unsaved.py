"""Steps that are trained and not saved after a save has failed: when to retry, and when there are too many."""

from dataclasses import dataclass

from pretrain.process.urgency import Urgency

_FIRST_S, _LONGEST_S = 10.0, 300.0


@dataclass(frozen=True, kw_only=True)
class SaveFailure:
    """A save that failed, and what would be lost. Older checkpoints stay as they are."""

    step: int
    reason: str
    """a sentence"""
    unsaved_steps: int
    """between the newest checkpoint and this step: what would be lost now"""
    saved_step: int
    """the step of the newest checkpoint, 0 if there is none"""
    failures: int
    """in a row, with this one"""
    limit_steps: int | None
    """unsaved steps that end the run; None: no number does"""

    @property
    def sentence(self) -> str:
        ends = "" if self.limit_steps is None else f"; {self.limit_steps:,} of them end the run"
        return f"{self.reason}; {self.unsaved_steps:,} steps since step {self.saved_step:,} are not saved{ends}"


@dataclass(frozen=True)
class _Trouble:
    failures: int
    again_s: float
    """when to save again, though no save is due"""


class Unsaved:
    """Retry policy after failed saves: one thread reports results, another asks what to do. Times are of
    `time.monotonic`, seconds.

    After a failed save the next is due 10 s later, then 20, 40, ... and at most 300 s later, at the end of a step;
    those that are due anyway count as tries, too. A save that succeeds ends it all. `limit_steps`: see
    `checkpoint.unsaved_steps`.
    """

    def __init__(self, step: int = 0, limit_steps: int | None = None) -> None:
        self._step, self._limit_steps = step, limit_steps
        self._trouble: _Trouble | None = None

    def saved(self, step: int) -> None:
        """The checkpoint of `step` is valid."""
        self._step, self._trouble = step, None

    def failed(self, step: int, reason: str, now_s: float) -> SaveFailure:
        """The save of `step` failed."""
        failures = (self._trouble.failures if self._trouble is not None else 0) + 1
        delay_s = min(_FIRST_S * 2 ** min(failures - 1, 10), _LONGEST_S)
        self._trouble = _Trouble(failures, now_s + delay_s)
        return SaveFailure(
            step=step,
            reason=reason,
            unsaved_steps=self.steps(step),
            saved_step=self._step,
            failures=failures,
            limit_steps=self._limit_steps,
        )

    def steps(self, step: int) -> int:
        """Number of steps that are lost if the run ends after `step`."""
        return step - self._step

    def urgency(self, step: int, now_s: float, idle: bool) -> Urgency:
        """Urgency of a save after `step`. `idle`: nothing is being written."""
        trouble = self._trouble
        if trouble is None:
            return Urgency.NONE
        if self._limit_steps is not None and self.steps(step) >= self._limit_steps:
            return Urgency.LAST_TRY
        return Urgency.SAVE if idle and now_s >= trouble.again_s else Urgency.NONE
