"""A counter-based hash of coordinates, in torch's integers: the same on any device.

It is splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), folded over one coordinate
after another.
"""

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15 - 2**64  # constants of splitmix64, as int64 holds them
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def fold(hashed: Tensor, start: int, count: int) -> Tensor:
    """[...] -> [..., count]: another hash for each of the coordinates [start, start + count)."""
    coordinates = torch.arange(start, start + count, device=hashed.device)
    # Changes nothing. Without it torch.compile takes the product below for an index; in C++, one so large is undefined.
    coordinates.bitwise_and_((1 << 63) - 1)
    return mix(hashed[..., None] + coordinates * GAMMA)


def mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, in place: a bijection of 64 bits, each of which depends on all."""
    x.bitwise_xor_(shifted(x, 30)).mul_(_FIRST)
    x.bitwise_xor_(shifted(x, 27)).mul_(_SECOND)
    return x.bitwise_xor_(shifted(x, 31))


def shifted(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; that of signed integers copies the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)
