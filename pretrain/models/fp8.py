"""Products of a layer's linears in 8-bit floats: what is multiplied is rounded, sums are fp32, results as they were.

Weights and activations keep 4 significant bits (e4m3); gradients keep 3, and reach further (e5m2): the choice of
Micikevicius et al. 2022 (arXiv 2209.05433). A tensor is multiplied by a factor first, so that its values fit. Factors
are powers of two, found anew from the tensor itself. So a run that is resumed needs no history of them, and however a
layout cuts a tensor, its values are rounded alike, but for those 2^13 times smaller than the largest (of gradients,
2^28).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

from pretrain.plan.layout import FP8_BLOCK

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
_ROUNDED_BELOW = {VALUES: 2.0**8, GRADIENTS: 2.0**15}  # the greatest powers of two that are none too large
_LEAST = 2.0**-100  # smaller values are taken for this large, so that the factor is finite
_EXPONENT = 0x7F800000  # of the bits of an fp32 number
Rounded = tuple[Tensor, Tensor]
"""(8-bit values, what to multiply them by)"""


def rounded(x: Tensor, dtype: torch.dtype) -> Rounded:
    """`x` in 8 bits, with its own factor [] in fp32. What is not finite makes the factor so."""
    low, high = torch.aminmax(x)
    largest = torch.maximum(-low, high).float()
    power = (largest.view(torch.int32) & _EXPONENT).view(torch.float32)  # of two, the next at or below
    factor = _ROUNDED_BELOW[dtype] / 2 / power.clamp(min=_LEAST)
    return (x * factor).to(dtype), 1 / factor


Rounding = Callable[[Tensor, torch.dtype], Rounded]


def linears(rounding: Rounding) -> tuple[type[ColumnParallelLinear], type[RowParallelLinear]]:
    """megatron-core's, multiplying in 8 bits what `rounding` has rounded, as `rounded` does."""

    class Column(_Linear, ColumnParallelLinear):
        pass

    class Row(_Linear, RowParallelLinear):
        pass

    Column.rounding = Row.rounding = staticmethod(rounding)
    return Column, Row


class _Linear:
    """What megatron-core's parallel linears compute, between their exchanges, in 8 bits."""

    rounding: Rounding

    def _forward_impl(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, *, allreduce_dgrad: bool = False,
        sequence_parallel: bool = False, tp_group: dist.ProcessGroup | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        gathers, sums = (tp_group if asked else None for asked in (sequence_parallel, allreduce_dgrad))
        out: Tensor = _Product.apply(input, weight, self.rounding, gathers, sums)  # type: ignore[no-untyped-call]
        return out if bias is None else out + bias


class _Product(torch.autograd.Function):
    """x [S, B, in], weight [out, in] -> [S, B, out]. Ranks of the group `gathers` each have a part of S; those of
    `sums` each have a part of the gradient of x. Exchanges go on beside products, and x is kept as it came."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, rounding: Rounding, gathers: dist.ProcessGroup | None,
        sums: dist.ProcessGroup | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.settings = rounding, gathers, sums
        whole, _ = _gathered(x, gathers, waits=True)
        rows = rounding(whole.flatten(0, -2), VALUES)
        out: Tensor = _product(rows, rounding(weight, VALUES), x.dtype).unflatten(0, whole.shape[:-1])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (rounding, gathers, sums) = ctx.saved_tensors, ctx.settings
        whole, arrival = _gathered(x, gathers, waits=False)
        back = rounding(gradient.flatten(0, -2), GRADIENTS)
        all_of_x = _product(back, _turned(rounding(weight, VALUES)), x.dtype).unflatten(0, whole.shape[:-1])
        of_x, leaving = all_of_x, None
        if gathers is not None:
            of_x = x.new_empty(x.shape)
            leaving = dist.reduce_scatter_tensor(of_x, all_of_x, group=gathers, async_op=True)
        elif sums is not None:
            leaving = dist.all_reduce(of_x, group=sums, async_op=True)
        if arrival is not None:
            arrival.wait()
        rows = rounding(whole.flatten(0, -2), VALUES)
        of_weight = _product(_turned(back), _turned(rows), weight.dtype)
        if leaving is not None:
            leaving.wait()
        return of_x, of_weight, None, None, None


def _product(a: Rounded, b: Rounded, dtype: torch.dtype) -> Tensor:
    """a [m, k], b [n, k] -> a b^T [m, n]"""
    (left, of_left), (right, of_right) = a, b
    whole = F.ScalingType.TensorWise
    # Sums are fp32 throughout: faster ones would keep fewer bits of them.
    out: Tensor = F.scaled_mm(left, right.T, of_left, whole, of_right, whole, output_dtype=dtype, use_fast_accum=False)
    return out


def _turned(x: Rounded) -> Rounded:
    """[m, n] -> [n, m], with zeros after it until m is a multiple of the block."""
    values, factor = x
    return F.pad(values.T, (0, -len(values) % FP8_BLOCK)).contiguous(), factor


def _gathered(x: Tensor, group: dist.ProcessGroup | None, waits: bool) -> tuple[Tensor, dist.Work | None]:
    """The parts of all ranks of the group, end to end; and what to wait for before it is read."""
    if group is None:
        return x, None
    whole = x.new_empty((group.size() * len(x), *x.shape[1:]))
    work = dist.all_gather_into_tensor(whole, x.contiguous(), group=group, async_op=not waits)
    return whole, work
