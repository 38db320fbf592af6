"""Weight decay, judged apart from the gradient's part of an update, which may be thousands of times as large.

It is found as what of an update lies along the weights: where a layout's update and the reference's differ by a part of
the decay, that part is the slope of the difference over the decay, a regression through the origin. Thousands of
weights tell it exactly though rounding hides it in each of them, and how exactly is known from what the slope leaves.
"""

from dataclasses import dataclass

import numpy as np

from pretrain.config.optimizer import Optimizer

_DEVIATIONS = 6.0  # of the slope, that chance explains
_FEWEST = 64  # weights that a slope is told from


@dataclass(frozen=True)
class DecaySums:
    """Sums over weights that were compared; those of several parameters add up."""

    count: int = 0
    squares: float = 0.0
    """of the decay that is asked for"""
    product: float = 0.0
    """of it with the difference of the updates"""
    difference: float = 0.0
    """squares of that"""

    def __add__(self, other: "DecaySums") -> "DecaySums":
        return DecaySums(
            self.count + other.count,
            self.squares + other.squares,
            self.product + other.product,
            self.difference + other.difference,
        )

    @property
    def lost(self) -> float:
        """The part of the decay by which the updates differ, as far as chance does not explain it."""
        if self.count < _FEWEST or not self.squares:
            return 0.0
        slope = self.product / self.squares
        left = max(0.0, self.difference - slope * self.product) / (self.count - 1)
        return max(0.0, abs(slope) - _DEVIATIONS * float(np.sqrt(left / self.squares)))


def decay_sums(difference: np.ndarray, weights: np.ndarray, rate: float) -> DecaySums:
    """`difference` of a layout's update from the reference's, of `weights` as they were before: flat, of the same size.
    `rate`: what part of them was to decay."""
    off, decay = difference.astype(np.float64), weights.astype(np.float64) * rate
    return DecaySums(off.size, float(decay @ decay), float(decay @ off), float(off @ off))


def decay_rate(settings: Optimizer, learning_rate: float, update: np.ndarray) -> float:
    """The part of a parameter's weights that a step takes away, `update` being the reference's of the whole parameter.
    LAMB's rate is larger by what makes the update as long as it is: of a direction of elements of about 1. Adam's decay
    is part of its gradient, and shows in its direction."""
    match settings.name:
        case "adam":
            return 0.0
        case "lamb":
            return settings.weight_decay * float(np.sqrt(np.mean(np.square(update, dtype=np.float64))))
        case _:
            return settings.weight_decay * learning_rate
