"""A bias, dropout and a residual added in one pass, forward; the gradients of input and bias in one, backward. Dropout
alone is the same without a bias and a residual.

Which elements drop out is computed in both passes, and never kept. The bias's gradient is a sum over all rows in two
stages of a fixed order: over the rows of a program, then over these.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.models.parameter_gradients import hand_over
from pretrain.models.triton import tiles
from pretrain.random.dropout import Drawn

_WARPS = {"num_warps": 8}
"""twice those of other tiles of this size: a hash takes registers"""


def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, drawn: Drawn | None) -> Tensor:
    """See `Kernels.bias_dropout_add`."""
    out: Tensor = _DropoutAdd.apply(x, bias, residual, drawn)  # type: ignore[no-untyped-call]
    return out


def dropout(x: Tensor, drawn: Drawn) -> Tensor:
    """See `random.dropout.dropout`."""
    out: Tensor = _DropoutAdd.apply(x, None, None, drawn)  # type: ignore[no-untyped-call]
    return out


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor | None, drawn: Drawn | None
    ) -> Tensor:  # fmt: skip
        ctx.bias, ctx.drawn, ctx.adds = bias, drawn, residual is not None
        residual = None if residual is None else residual.contiguous()
        hashes, place = _drawn(drawn)
        out: Tensor = dropout_add(x.contiguous(), bias, residual, hashes, place=place)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        bias, of_x, of_bias = ctx.bias, gradient, None
        if ctx.drawn is not None:
            hashes, place = _drawn(ctx.drawn)
            of_x, sums = dropout_gradients(gradient.contiguous(), hashes, place=place, biased=bias is not None)
            of_bias = None if bias is None else hand_over(bias, sums.sum(0))
        elif bias is not None:
            of_bias = hand_over(bias, gradient.flatten(0, -2).sum(0, dtype=torch.float32))
        return of_x, of_bias, gradient if ctx.adds else None, None


def _drawn(drawn: Drawn | None) -> tuple[list[Tensor], list[int]]:
    """`Drawn` as operators take it, which know no such type: its tensors and its numbers. Empty: no dropout."""
    if drawn is None:
        return [], []
    tensors = [drawn.first] if drawn.offsets is None else [drawn.first, drawn.offsets]
    return tensors, [drawn.begin, drawn.begin_columns, drawn.levels, drawn.rows_second]


def _both(hashes: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    first, offsets = (*hashes, None, None)[:2]
    return first, offsets


def _places(x: Tensor, place: Sequence[int]) -> tuple[tuple[int, ...], dict[str, bool]]:
    """Arguments of the kernels about the place of x [a, b, ..., columns] in a batch: sizes, and choices."""
    begin, begin_columns, levels, rows_second = place or (0, 0, 0, 0)
    inner = x.shape[2:-1]
    assert len(inner) < 2, "a hash is folded over one inner dimension at most"
    sizes = begin, begin_columns, levels, x.shape[1], math.prod(inner)
    return sizes, {"ROWS_SECOND": bool(rows_second), "INNER": bool(inner)}


@torch.library.custom_op("pretrain::dropout_add", mutates_args=())
def dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, hashes: Sequence[Tensor], *, place: Sequence[int]
) -> Tensor:  # fmt: skip
    """`kernels.dropout.dropped_out` of x [a, b, ..., F]; `hashes` and `place`: see `_drawn`."""
    from pretrain.models.triton.kernels import dropout as kernels

    out, (sizes, choices) = torch.empty_like(x), _places(x, place)
    choices |= {"BIASED": bias is not None, "ADDS": residual is not None, "DROPS": bool(place)}
    tensors, tile = (x, bias, residual, out, *_both(hashes)), tiles.forward(x) | _WARPS
    kernels.dropped_out[tiles.grid(x, tile)](
        *tensors, *sizes, *tiles.rows_columns(x), OFFSETS=len(hashes) > 1, **choices, **tile
    )
    return out


@dropout_add.register_fake
def _(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, hashes: Sequence[Tensor], *, place: Sequence[int]
) -> Tensor:  # fmt: skip
    return torch.empty_like(x)


@torch.library.custom_op("pretrain::dropout_gradients", mutates_args=())
def dropout_gradients(
    gradient: Tensor, hashes: Sequence[Tensor], *, place: Sequence[int], biased: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`kernels.dropout.gradients`: (gradient of x, sums over the rows of each program)."""
    from pretrain.models.triton.kernels import dropout as kernels

    of_x, sums, (sizes, choices) = torch.empty_like(gradient), tiles.sums(gradient, biased), _places(gradient, place)
    choices |= {"BIASED": biased, "OFFSETS": len(hashes) > 1}
    tensors, tile = (gradient, of_x, sums, *_both(hashes)), tiles.backward(gradient)
    kernels.gradients[tiles.grid(gradient, tile)](*tensors, *sizes, *tiles.rows_columns(gradient), **choices, **tile)
    return of_x, sums


@dropout_gradients.register_fake
def _(
    gradient: Tensor, hashes: Sequence[Tensor], *, place: Sequence[int], biased: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(gradient), tiles.sums(gradient, biased)
