"""megatron-core's parallel linears with other arithmetic between their exchanges."""

from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

Received = TypeVar("Received")


class Arithmetic(Protocol[Received]):
    """The three products of a linear."""

    def concerns(self, x: Tensor) -> bool:
        """Whether it is for such numbers; others are left to megatron-core."""
        ...

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, in], weight [out, in] -> [n, out]"""
        ...

    def received(self, gradient: Tensor) -> Received:
        """What the two others take of the gradient [n, out]."""
        ...

    def of_input(self, received: Received, weight: Tensor) -> Tensor:
        """[n, in]"""
        ...

    def add_of_weight(self, into: Tensor, received: Received, x: Tensor) -> None:
        """Adds it to `into` [out, in], in fp32."""
        ...


class Linear:
    """What is laid over one of megatron-core's."""

    arithmetic: Arithmetic[Any]
    adds_up = True
    """Whether nothing else uses the weight, so that its gradient may be added to the others at once."""

    def _forward_impl(self, input: Tensor, weight: Tensor, bias: Tensor | None, **exchanges: Any) -> Tensor:
        if not self.arithmetic.concerns(input):
            return super()._forward_impl(input, weight, bias=bias, **exchanges)  # type: ignore[misc, no-any-return]
        names = "sequence_parallel", "allreduce_dgrad"
        gathers, sums = (exchanges["tp_group"] if exchanges[name] else None for name in names)
        out: Tensor = Product.apply(input, weight, self.arithmetic, self.adds_up, gathers, sums)  # type: ignore[no-untyped-call]
        return out if bias is None else out + bias


def linears(by: Arithmetic[Any]) -> tuple[type[ColumnParallelLinear], type[RowParallelLinear]]:
    """megatron-core's, that compute `by` an arithmetic."""

    class Column(Linear, ColumnParallelLinear):
        arithmetic = by

    class Row(Linear, RowParallelLinear):
        arithmetic = by

    return Column, Row


class Product(torch.autograd.Function):
    """x [S, B, in], weight [out, in] -> [S, B, out]. Ranks of the group `gathers` each have a part of S; those of
    `sums` each have a part of the gradient of x. Exchanges go on beside products, and x is kept as it came."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, arithmetic: Arithmetic[Any], adds_up: bool,
        gathers: dist.ProcessGroup | None, sums: dist.ProcessGroup | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.settings = arithmetic, adds_up, gathers, sums
        whole, _ = _gathered(x, gathers, waits=True)
        out: Tensor = arithmetic.forward(whole.flatten(0, -2), weight).unflatten(0, whole.shape[:-1])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (arithmetic, adds_up, gathers, sums) = ctx.saved_tensors, ctx.settings
        whole, arrival = _gathered(x, gathers, waits=False)
        received = arithmetic.received(gradient.flatten(0, -2))
        all_of_x = arithmetic.of_input(received, weight).unflatten(0, whole.shape[:-1])
        of_x, leaving = all_of_x, None
        if gathers is not None:
            of_x = x.new_empty(x.shape)
            leaving = dist.reduce_scatter_tensor(of_x, all_of_x, group=gathers, async_op=True)
        elif sums is not None:
            leaving = dist.all_reduce(of_x, group=sums, async_op=True)
        if arrival is not None:
            arrival.wait()
        of_weight = _of_weight(weight, arithmetic, adds_up, received, whole.flatten(0, -2))
        if leaving is not None:
            leaving.wait()
        return of_x, of_weight, None, None, None, None


def _of_weight(weight: Tensor, arithmetic: Arithmetic[Any], adds_up: bool, received: Any, x: Tensor) -> Tensor:
    """The gradient of the weight. Where megatron-core adds gradients up in fp32, it is added there, and what is
    returned only says that it came: megatron-core looks at nothing else then."""
    if adds_up and hasattr(weight, "grad_added_to_main_grad"):
        arithmetic.add_of_weight(weight.main_grad, received, x)  # type: ignore[attr-defined]
        weight.grad_added_to_main_grad = True
        return torch.empty_like(weight)
    alone = torch.zeros_like(weight, dtype=torch.float32)
    arithmetic.add_of_weight(alone, received, x)
    return alone.to(weight.dtype)


def _gathered(x: Tensor, group: dist.ProcessGroup | None, waits: bool) -> tuple[Tensor, dist.Work | None]:
    """The parts of all ranks of the group, end to end; and what to wait for before it is read."""
    if group is None:
        return x, None
    whole = x.new_empty((group.size() * len(x), *x.shape[1:]))
    work = dist.all_gather_into_tensor(whole, x.contiguous(), group=group, async_op=not waits)
    return whole, work
