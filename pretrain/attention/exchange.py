"""The exchange of context parallelism around attention: a slice of the positions with all heads, for all positions with
a share of the heads.

Ranks that share each sequence hold a contiguous slice of its positions, which is all that most of a layer needs.
Attention needs full sequences, but its heads are independent: an all-to-all before it distributes heads instead, and
the inverse follows it (DeepSpeed-Ulysses: Jacobs et al. 2023, arXiv 2309.14509, section 3). So every attention pattern
runs as it is on one rank, on fewer heads.

Shapes: S positions, B batch, H heads, D width, as a rank has them without context parallelism; C ranks in `group`.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def full_sequences(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[S / C, B, H, D] -> [S, B, H / C, D]: all positions of this rank's heads. Collective, and so is its gradient."""
    return _exchanged(x, group, True)


def own_positions(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[S, B, H / C, D] -> [S / C, B, H, D], the inverse of `full_sequences`."""
    return _exchanged(x, group, False)


class _Exchange(torch.autograd.Function):
    """A permutation of elements over ranks, so the gradient goes the inverse way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, to_full: bool) -> Tensor:
        ctx.group, ctx.to_full = group, to_full
        ranks = group.size()
        if to_full:  # part r of the heads goes to rank r; from rank r comes slice r of the positions
            return _all_to_all(x.unflatten(2, (ranks, -1)).movedim(2, 0), group).flatten(0, 1)
        return _all_to_all(x.unflatten(0, (ranks, -1)), group).movedim(0, 2).flatten(2, 3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _exchanged(gradient, ctx.group, not ctx.to_full), None, None


def _exchanged(x: Tensor, group: dist.ProcessGroup, to_full: bool) -> Tensor:
    out: Tensor = _Exchange.apply(x, group, to_full)  # type: ignore[no-untyped-call]
    return out


def _all_to_all(slices: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[C, ...], slice r for rank r -> [C, ...], slice r from rank r."""
    slices = slices.contiguous()
    received = torch.empty_like(slices)
    dist.all_to_all_single(received, slices, group=group)
    return received
