"""64-bit digests of the bits of tensors: a tensor in which one element differs never has the same digest, one in which
several differ has it by chance, once in 2**64.

A digest is a sum of elements, each times an odd number of its position, in integers modulo 2**64. A product with an odd
number is a bijection, so what one element changes cannot vanish.
"""

from functools import cache

import torch
from torch import Tensor

from pretrain.random.hashing import fold

_BLOCK = 1 << 20
"""elements that are read at a time, which bounds the memory that it takes"""
_NEXT = 0xD1342543DE82EF95 - 2**64
"""an odd number: what a digest is multiplied by before the next block, or tensor, is added"""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(x: Tensor) -> Tensor:
    """[] int64 on the device of `x`: the digest of its bits, in the order of its elements."""
    bits = x.detach().contiguous().view(-1).view(_INTEGERS[x.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for block in bits.split(_BLOCK):
        total = follow(total, (block.to(torch.int64) * _multipliers(x.device)[: len(block)]).sum())
    return total


def follow(before: Tensor, following: Tensor) -> Tensor:
    """[] int64: the digest of two digests in this order."""
    return before * _NEXT + following


@cache
def _multipliers(device: torch.device) -> Tensor:
    """int64 [_BLOCK]: odd, and otherwise random."""
    return fold(torch.zeros((), dtype=torch.int64, device=device), 1, _BLOCK).bitwise_or_(1)
