"""megatron-core's parallel linears with other arithmetic between their exchanges."""

from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from torch import Tensor, nn

from pretrain.models.parameter_gradients import accumulate, add_bias, hand_over

Received = TypeVar("Received")


class Arithmetic(Protocol[Received]):
    """The three products of a linear."""

    adds_bias: bool
    """whether the first product takes the bias: otherwise it is added to what it gave, rounded"""

    def concerns(self, x: Tensor) -> bool:
        """Whether it is for such numbers; others are left to megatron-core."""
        ...

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [n, in], weight [out, in], bias [out] if it `adds_bias` -> [n, out]"""
        ...

    def received(self, gradient: Tensor) -> Received:
        """Form of the gradient [n, out] that the two other products take."""
        ...

    def input_gradient(self, received: Received, weight: Tensor) -> Tensor:
        """[n, in]"""
        ...

    def add_weight_gradient(self, into: Tensor, received: Received, x: Tensor) -> None:
        """Adds it to `into` [out, in], in fp32."""
        ...


class Linear:
    """Overrides the arithmetic of a linear of megatron-core."""

    arithmetic: Arithmetic[Any]

    def _forward_impl(self, input: Tensor, weight: Tensor, bias: Tensor | None, **exchanges: Any) -> Tensor:
        if not self.arithmetic.concerns(input):
            return super()._forward_impl(input, weight, bias=bias, **exchanges)  # type: ignore[misc, no-any-return]
        names = "sequence_parallel", "allreduce_dgrad"
        groups = (exchanges["tp_group"] if exchanges[name] else None for name in names)
        return _linear(input, weight, bias, self.arithmetic, *groups)


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, by: Arithmetic[Any], *groups: dist.ProcessGroup | None
) -> Tensor:  # fmt: skip
    within = bias if by.adds_bias else None
    out: Tensor = Product.apply(x, weight, within, by, *groups)  # type: ignore[no-untyped-call]
    return out if bias is None or by.adds_bias else add_bias(out, bias)


def linears(by: Arithmetic[Any]) -> tuple[type[ColumnParallelLinear], type[RowParallelLinear], type[nn.Linear]]:
    """megatron-core's column- and row-parallel linear, and torch's for a matrix that every tensor rank holds: all
    compute `by` an arithmetic."""

    class ColumnLinear(Linear, ColumnParallelLinear):
        arithmetic = by

    class RowLinear(Linear, RowParallelLinear):
        arithmetic = by

    class ReplicatedLinear(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if not by.concerns(input):
                return super().forward(input)
            return _linear(input, self.weight, self.bias, by, None, None)

    return ColumnLinear, RowLinear, ReplicatedLinear


class Product(torch.autograd.Function):
    """x [S, B, in], weight [out, in], bias [out] -> [S, B, out]. Ranks of the group `gathers` each have a part of S;
    those of `sums` each have a part of the gradient of x. Communication overlaps with products, and x is kept as it
    came, unless the weight is frozen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, arithmetic: Arithmetic[Any],
        gathers: dist.ProcessGroup | None, sums: dist.ProcessGroup | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.settings, ctx.bias = (arithmetic, gathers, sums, x.shape), bias
        gathered, _ = _gathered(x, gathers, waits=True)
        out: Tensor = arithmetic.forward(gathered.flatten(0, -2), weight, bias).unflatten(0, gathered.shape[:-1])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (arithmetic, gathers, sums, shape) = ctx.saved_tensors, ctx.settings
        gathered, arrival = (None, None) if x is None else _gathered(x, gathers, waits=False)
        received = arithmetic.received(gradient.flatten(0, -2))
        all_of_x = arithmetic.input_gradient(received, weight).unflatten(0, gradient.shape[:-1])
        of_x, leaving = all_of_x, None
        if gathers is not None:
            of_x = all_of_x.new_empty(shape)
            leaving = dist.reduce_scatter_tensor(of_x, all_of_x, group=gathers, async_op=True)
        elif sums is not None:
            leaving = dist.all_reduce(of_x, group=sums, async_op=True)
        if arrival is not None:
            arrival.wait()
        of_weight = of_bias = None
        if ctx.bias is not None:
            of_bias = hand_over(ctx.bias, gradient.flatten(0, -2).sum(0, dtype=torch.float32))
        if gathered is not None:
            rows = gathered.flatten(0, -2)
            of_weight = accumulate(weight, lambda into: arithmetic.add_weight_gradient(into, received, rows))
        if leaving is not None:
            leaving.wait()
        return of_x, of_weight, of_bias, None, None, None


def _gathered(x: Tensor, group: dist.ProcessGroup | None, waits: bool) -> tuple[Tensor, dist.Work | None]:
    """The parts of all ranks of the group, end to end; and what to wait for before it is read."""
    if group is None:
        return x, None
    gathered = x.new_empty((group.size() * len(x), *x.shape[1:]))
    work = dist.all_gather_into_tensor(gathered, x.contiguous(), group=group, async_op=not waits)
    return gathered, work
