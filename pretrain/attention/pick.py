"""Scores of few distances, picked for many pairs of positions."""

from typing import Any

import torch
from torch import Tensor


def pick(values: Tensor, columns: Tensor) -> Tensor:
    """`values` [..., X, R] at `columns` [X, Y], or [..., X, Y], of each row: [..., X, Y]."""
    out: Tensor = _Pick.apply(values, columns)  # type: ignore[no-untyped-call]
    return out


class _Pick(torch.autograd.Function):
    """torch's `gather` keeps its input for its shape alone, and sums the gradient of a column in half precision."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.count = values.shape[-1]
        return values.gather(-1, columns.expand(*values.shape[:-1], -1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (columns,) = ctx.saved_tensors
        wide = torch.promote_types(gradient.dtype, torch.float32)
        sums = torch.zeros(*gradient.shape[:-1], ctx.count, dtype=wide, device=gradient.device)
        sums.scatter_add_(-1, columns.expand_as(gradient), gradient.to(wide))
        return sums.to(gradient.dtype), None
