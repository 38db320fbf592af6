"""Sums over the ranks that share something, inside of a model or its loss."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class SumOverRanks(torch.autograd.Function):
    """The sum over ranks, on each of them, which use it for different parts of the loss, or one of them alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sum_over_ranks(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """`SumOverRanks`, of any number of ranks."""
    if dist.get_world_size(group) == 1:
        return x
    total: Tensor = SumOverRanks.apply(x, group)  # type: ignore[no-untyped-call]
    return total
