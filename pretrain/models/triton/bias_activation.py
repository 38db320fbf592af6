"""A bias added and an activation in one pass, forward; its gradient and that of the bias in one, backward.

The bias's gradient is a sum over all rows in two stages of a fixed order: over the rows of a program, then over these.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pretrain.models import elementwise
from pretrain.models.parameter_gradients import hand_over
from pretrain.models.triton import tiles


def with_kernels(names: Mapping[Callable[[Tensor], Tensor], str]) -> Callable[..., Tensor]:
    """`Kernels.bias_activation` by these kernels, where an activation is one of `names`: of the kernels' KIND. A
    package's own activation is computed by torch."""

    def bias_activation(x: Tensor, bias: Tensor | None, activation: Callable[[Tensor], Tensor], gated: bool) -> Tensor:
        kind = names.get(activation)
        if kind is None:
            return elementwise.bias_activation(x, bias, activation, gated)
        out: Tensor = _BiasActivation.apply(x, bias, kind, gated)  # type: ignore[no-untyped-call]
        return out

    return bias_activation


class _BiasActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
        # DeepSpeed's stage 3 may release the values of a large bias before the backward pass.
        ctx.save_for_backward(x, bias.clone() if bias is not None and hasattr(bias, "ds_shape") else bias)
        ctx.parameter, ctx.kind, ctx.gated = bias, kind, gated
        out: Tensor = bias_activation(x.contiguous(), bias, kind, gated)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        of_x, sums = bias_activation_gradients(gradient.contiguous(), x.contiguous(), bias, ctx.kind, ctx.gated)
        of_bias = None if bias is None else hand_over(ctx.parameter, sums.sum(0))
        return of_x, of_bias, None, None


def _empty_gated(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@torch.library.custom_op("pretrain::bias_activation", mutates_args=())
def bias_activation(x: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
    """`kernels.bias_activation.activated` of x [..., F]."""
    from pretrain.models.triton.kernels import bias_activation as kernels

    out = _empty_gated(x) if gated else torch.empty_like(x)
    choices = {"KIND": kind, "GATED": gated, "BIASED": bias is not None}
    tile = tiles.forward(x)
    kernels.activated[tiles.grid(x, tile)](x, bias, out, *tiles.rows_columns(x), **choices, **tile)
    return out


@bias_activation.register_fake
def _(x: Tensor, bias: Tensor | None, kind: str, gated: bool) -> Tensor:
    return _empty_gated(x) if gated else torch.empty_like(x)


@torch.library.custom_op("pretrain::bias_activation_gradients", mutates_args=())
def bias_activation_gradients(
    gradient: Tensor, x: Tensor, bias: Tensor | None, kind: str, gated: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`kernels.bias_activation.gradients`: (gradient of x, sums over the rows of each program)."""
    from pretrain.models.triton.kernels import bias_activation as kernels

    of_x, sums = torch.empty_like(x), tiles.sums(x, bias is not None)
    choices = {"KIND": kind, "GATED": gated, "BIASED": bias is not None}
    tensors, tile = (gradient, x, bias, of_x, sums), tiles.backward(x)
    kernels.gradients[tiles.grid(x, tile)](*tensors, *tiles.rows_columns(x), **choices, **tile)
    return of_x, sums


@bias_activation_gradients.register_fake
def _(gradient: Tensor, x: Tensor, bias: Tensor | None, kind: str, gated: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), tiles.sums(x, bias is not None)
