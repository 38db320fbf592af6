"""Stochastic rounding to bf16 as a function of (name, coordinates), and of nothing else.

A value between two of bf16 becomes the larger one with the probability of its place between them, so that a sum of many
small changes arrives on average. Rounding to the nearest one leaves out each change of less than 2^-9 of a value.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pretrain.random.dropout import key
from pretrain.random.hashing import fold


def random_bits(name: str, offset: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
    """[elements, 4] int16: four random numbers for each element of the box of `shape` at `offset` of a tensor."""
    first = (key(name) + 2**63) % 2**64 - 2**63  # as int64 holds it
    hashed = torch.full((), first, device=device)
    for start, count in zip(offset, shape, strict=True):
        hashed = fold(hashed, start, count)
    return hashed.view(-1, 1).view(torch.int16)


def round_into(rounded: Tensor, x: Tensor, bits: Tensor) -> None:
    """Writes `x` [n] fp32, which is used up, into `rounded` [n] bf16, each element by 16 random `bits` [n] int16: added
    to the bits of fp32 that bf16 lacks, they carry with the probability that is meant. What is not finite stays."""
    carried = x.view(torch.int32).add_(bits.to(torch.int32).bitwise_and_(0xFFFF))
    rounded.copy_(carried.bitwise_and_(-0x10000).view(torch.float32))
