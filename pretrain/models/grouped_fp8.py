"""Products of experts in 8-bit floats: of each expert, those of `fp8.py` with its rows and its matrix.

Each has a factor for its rows and one for its matrix, never one for several experts: rows of a rank depend on which
experts it has, and an expert that is smaller than others would be rounded to nothing. torch's kernel for all experts at
once takes e4m3 alone, and gradients are e5m2, so there is one product after the other; they are rounded together.

Shapes: as in `grouped.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.models import grouped
from pretrain.models.fp8 import GRADIENTS, VALUES, Quantized, product, quantize_matrices, quantize_rows, turned
from pretrain.models.parameter_gradients import accumulate


class GroupedLinearInFp8(grouped.GroupedLinear):
    """`grouped.GroupedLinear` in 8 bits."""

    def forward(self, x_NI: Tensor, counts_E: Tensor) -> Tensor:
        out: Tensor = _Fp8Products.apply(x_NI, self.weight, counts_E)  # type: ignore[no-untyped-call]
        return out


class _Fp8Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_NI if ctx.needs_input_grad[1] else None, weight_EOI, counts_E)
        ctx.counts = grouped.host_counts(counts_E, len(x_NI))
        out_NO = x_NI.new_empty(len(x_NI), weight_EOI.shape[1])
        rows = quantize_rows(x_NI, VALUES, counts_E)
        _multiply(rows, quantize_matrices(weight_EOI, VALUES), ctx.counts, out_NO)
        return out_NO

    @staticmethod
    def backward(ctx: Any, gradient_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_EOI, counts_E = ctx.saved_tensors
        received = quantize_rows(gradient_NO.contiguous(), GRADIENTS, counts_E)
        of_x_NI = None
        if ctx.needs_input_grad[0]:
            of_x_NI = gradient_NO.new_empty(len(gradient_NO), weight_EOI.shape[2])
            _multiply(received, map(turned, quantize_matrices(weight_EOI, VALUES)), ctx.counts, of_x_NI)
        if x_NI is None:
            return of_x_NI, None, None

        def add(into_EOI: Tensor) -> None:
            rows = quantize_rows(x_NI, VALUES, counts_E)
            for into, gradient, x in zip(into_EOI, _apart(received, ctx.counts), _apart(rows, ctx.counts), strict=True):
                if len(x[0]):
                    into += product(turned(gradient), turned(x), into.dtype)

        return of_x_NI, accumulate(weight_EOI, add), None


def _multiply(rows: Quantized, matrices: Iterable[Quantized], counts: Sequence[int], out_NO: Tensor) -> None:
    """rows [N, I], of each expert a matrix [O, I] -> `out_NO`"""
    for out, x, matrix in zip(out_NO.split(counts), _apart(rows, counts), matrices, strict=True):
        if len(out):
            out.copy_(product(x, matrix, out.dtype))


def _apart(rows: Quantized, counts: Sequence[int]) -> list[Quantized]:
    """The rows of each expert, with its factor."""
    values, factor_E = rows
    return list(zip(values.split(counts), factor_E, strict=True))
