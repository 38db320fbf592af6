"""Attention scores that fall linearly with the distance (ALiBi: Press et al. 2021, arXiv 2108.12409, section 3)."""

import math

from torch import Tensor


def slopes(heads: int) -> list[float]:
    """Of each head. Of a power of two they are its geometric sequence, 2^(-8/heads) and on; of another number, those of
    the power of two below, and then every second of the one above (ofirpress/attention_with_linear_biases)."""
    below = 2 ** math.floor(math.log2(heads))
    between = [_geometric(2 * below)[place] for place in range(0, 2 * (heads - below), 2)]
    return _geometric(below) + between


def falling(slopes_H: Tensor, distances: Tensor) -> Tensor:
    """[..., H] of distances [...]: alike to both sides."""
    return -distances.abs()[..., None] * slopes_H


def _geometric(heads: int) -> list[float]:
    return [2 ** (-8 * number / heads) for number in range(1, heads + 1)]
