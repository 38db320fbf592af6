"""When a loss or a gradient norm is a spike: a robust statistic of the steps before, the same on every rank.

A value is one if it is above median + max(k * 1.4826 * MAD, floor * median) of the newest `window` values, where MAD is
the median distance from the median (Hampel 1974; for normal noise 1.4826 * MAD is its standard deviation). Half of the
window may be bad before the median is. The floor is for curves so smooth that nothing would be near their median.
docs/bad-numbers.md says what was measured to choose k, the window and the floors.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from pydantic import FiniteFloat

from pretrain.config.health import SpikesAct, SpikesWarn

LOSS_FLOOR = 0.1
NORM_FLOOR = 9.0
_CONSISTENT = 1.4826  # 1 / the 75% quantile of a standard normal distribution


@dataclass(frozen=True)
class Recent:
    """The newest values of steps that were finite, oldest first: all that the next step is judged by."""

    losses: tuple[FiniteFloat, ...] = ()
    grad_norms: tuple[FiniteFloat, ...] = ()


@dataclass(frozen=True)
class Spike:
    """A bad loss or gradient norm of a step."""

    what: str
    """loss or gradient norm"""
    value: float
    median: float | None = None
    limit: float | None = None
    """limit that it is above; None: it is not finite"""
    again: bool = False
    """the step before was bad, too"""

    def sentence(self) -> str:
        """`the loss is 9.134, above 4.2 (the median before is 3.1)`."""
        if self.limit is None:
            return f"the {self.what} is {self.value}"
        return f"the {self.what} is {self.value:.4g}, above {self.limit:.4g} (the median before is {self.median:.4g})"


class StepNumbers(Protocol):
    """Fields of the engine's StepResult that are judged."""

    @property
    def loss_sum(self) -> float: ...
    @property
    def token_count(self) -> int: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def skipped(self) -> bool: ...
    @property
    def lowered_scale(self) -> bool: ...


class SpikeWatch:
    """Judges each step by those before it. `recent` is what a checkpoint kept: a resumed run judges as one
    that never stopped."""

    def __init__(self, settings: SpikesWarn | SpikesAct, recent: Recent | None) -> None:
        recent = recent or Recent()
        self._settings = settings
        self._losses = deque(recent.losses, settings.window)
        self._norms = deque(recent.grad_norms, settings.window)
        self._bad = False  # the step before

    @property
    def recent(self) -> Recent:
        """Values in the window, for a checkpoint."""
        return Recent(tuple(self._losses), tuple(self._norms))

    def judge(self, result: StepNumbers) -> Spike | None:
        """Judges a step and adds it to the window. A step is ignored if its gradient only was too large for fp16's loss
        scale."""
        if result.lowered_scale or not result.token_count:
            return None
        loss, again = result.loss_sum / result.token_count, self._bad
        if result.skipped:
            what, value = ("gradient norm", result.grad_norm) if math.isfinite(loss) else ("loss", loss)
            self._bad = True
            return Spike(what, value, again=again)
        spikes = [
            self._compare("loss", loss, self._losses, LOSS_FLOOR, again),
            self._compare("gradient norm", result.grad_norm, self._norms, NORM_FLOOR, again),
        ]
        spike = next((spike for spike in spikes if spike is not None), None)
        self._bad = spike is not None
        return spike

    def _compare(self, what: str, value: float, before: deque[float], floor: float, again: bool) -> Spike | None:
        spike = None
        if len(before) == before.maxlen and _may_be_above(before, value, floor):
            centre, limit = limit_of(before, self._settings.k, floor)
            spike = Spike(what, value, centre, limit, again) if value > limit else None
        before.append(value)
        return spike


def _may_be_above(values: Sequence[float], value: float, floor: float) -> bool:
    """Whether `value` is above the floor, which takes half as long to say as the limit."""
    centre = median(values)
    return value > centre + floor * centre


def limit_of(values: Sequence[float], k: float, floor: float) -> tuple[float, float]:
    """(median of `values`, what a value after them has to be above to be a spike)."""
    centre = median(values)
    spread = _CONSISTENT * median([abs(value - centre) for value in values])
    return centre, centre + max(k * spread, floor * centre)
