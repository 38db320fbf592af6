"""Weight decay, judged apart from the gradient's part of an update, which may be thousands of times as large.

Decay is the component of an update along the weights. Where a layout's update and the reference's differ by a fraction
of the decay, that fraction is the slope of the difference over the decay, a regression through the origin. Over
thousands of weights the slope is precise even though rounding hides it in each of them; the residual of the regression
says how precise.
"""

from dataclasses import dataclass

import numpy as np

from pretrain.config.optimizer import Optimizer

_DEVIATIONS = 6.0  # standard deviations of the slope that count as chance
_MIN_WEIGHTS = 64  # fewer give no slope


@dataclass(frozen=True)
class DecaySums:
    """Sums over compared weights; sums of several parameters can be added."""

    count: int = 0
    squares: float = 0.0
    """sum of squares of the expected decay"""
    product: float = 0.0
    """inner product of the expected decay and the difference of the updates"""
    difference: float = 0.0
    """sum of squares of the difference of the updates"""

    def __add__(self, other: "DecaySums") -> "DecaySums":
        return DecaySums(
            self.count + other.count,
            self.squares + other.squares,
            self.product + other.product,
            self.difference + other.difference,
        )

    @property
    def lost(self) -> float:
        """Fraction of the decay by which the updates differ, less what chance explains."""
        if self.count < _MIN_WEIGHTS or not self.squares:
            return 0.0
        slope = self.product / self.squares
        left = max(0.0, self.difference - slope * self.product) / (self.count - 1)
        return max(0.0, abs(slope) - _DEVIATIONS * float(np.sqrt(left / self.squares)))


def decay_sums(difference: np.ndarray, weights: np.ndarray, rate: float) -> DecaySums:
    """Sums for `difference`, a layout's update minus the reference's, and `weights` before the update, both flat and of
    the same size. `rate`: fraction of the weights that the step decays."""
    off, decay = difference.astype(np.float64), weights.astype(np.float64) * rate
    return DecaySums(off.size, float(decay @ decay), float(decay @ off), float(off @ off))


def decay_rate(settings: Optimizer, learning_rate: float, update: np.ndarray) -> float:
    """Fraction of a parameter's weights that a step decays, given the reference's `update` of the full parameter. LAMB
    scales its direction, whose elements are about 1, to the length of the update, and the decay with it. Adam's decay
    is part of its gradient and shows in the update's direction."""
    match settings.name:
        case "adam":
            return 0.0
        case "lamb":
            return settings.weight_decay * float(np.sqrt(np.mean(np.square(update, dtype=np.float64))))
        case _:
            return settings.weight_decay * learning_rate
