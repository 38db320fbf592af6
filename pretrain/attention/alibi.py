"""Attention scores that fall linearly with the distance (ALiBi: Press et al. 2021, arXiv 2108.12409, section 3)."""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from pretrain.attention.device_copies import DeviceCopies


def slopes(heads: int) -> list[float]:
    """The slope of each head: for a power of two, the geometric sequence that begins with 2^(-8/heads); for another
    number, the slopes of the power of two below it, then every second one of the power of two above
    (ofirpress/attention_with_linear_biases)."""
    below = 2 ** math.floor(math.log2(heads))
    between = [_geometric(2 * below)[index] for index in range(0, 2 * (heads - below), 2)]
    return _geometric(below) + between


class AlibiBias:
    """The biases of the heads of a rank, by distance."""

    def __init__(self, slopes: Sequence[float]) -> None:
        self.slopes = tuple(slopes)
        """slope of each head"""
        self._copies = DeviceCopies(np.array(slopes, dtype=np.float32))

    def __call__(self, distances: Tensor) -> Tensor:
        return falling(self._copies.on(distances.device), distances)


def falling(slopes_H: Tensor, distances: Tensor) -> Tensor:
    """The biases [..., H] of distances [...]: the same for keys before and after the query."""
    return -distances.abs()[..., None] * slopes_H


def _geometric(heads: int) -> list[float]:
    return [2 ** (-8 * number / heads) for number in range(1, heads + 1)]
