"""Norms in one pass, forward; the gradients of a norm in one, backward, with that of the residual beside it.

Gradients of gain and bias are sums over all rows in two stages of a fixed order: over the rows of a program, then over
these.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.models.norms import LayerNorm, RMSNorm, ZeroCenteredRMSNorm
from pretrain.models.parameter_gradients import hand_over
from pretrain.models.triton.tiles import rows_columns

_ROWS = 64
"""rows of a program that sums gradients"""
_WIDEST = 8192
"""features of a row, which a program holds in its registers; wider rows are torch's"""


class TritonNorm(nn.Module):
    """Overrides what a norm computes."""

    offset = 0.0
    returns_residual = False

    def forward(self, x: Tensor) -> Any:
        """The norm of x [..., F]; or (that, x), of which the gradients are added up in one pass."""
        norm: Any = self
        if x.shape[-1] > _WIDEST:
            found = super().forward(x), x
        else:
            found = norm_and_residual(x, norm.weight, getattr(self, "bias", None), norm.eps, self.offset)
        return found if self.returns_residual else found[0]


class TritonLayerNorm(TritonNorm, LayerNorm):
    """Layer norm by these kernels."""


class TritonRMSNorm(TritonNorm, RMSNorm):
    """RMS norm by these kernels."""


class TritonZeroCenteredRMSNorm(TritonNorm, ZeroCenteredRMSNorm):
    """RMS norm by these kernels, which stores its gain minus one."""

    offset = 1.0


NORMS: Mapping[str, type[nn.Module]] = {
    "layer": TritonLayerNorm,
    "rms": TritonRMSNorm,
    "rms_zero_centered": TritonZeroCenteredRMSNorm,
}
"""Norms by `model.norm_type`."""


def with_residual(norm: type[nn.Module]) -> type[nn.Module]:
    """`norm`, which returns its input besides."""
    return type(norm.__name__, (norm,), {"returns_residual": True})


def norm_and_residual(
    x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, offset: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(layer norm of x [..., F], or an RMS norm without a bias; x), with gain [F] + offset."""
    out: tuple[Tensor, Tensor] = _Norm.apply(x, gain, bias, eps, offset)  # type: ignore[no-untyped-call]
    return out


class _Norm(torch.autograd.Function):
    """(norm of x, x): the second output is the residual, whose gradient is added to the norm's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        out, statistics = norm(x.contiguous(), gain, bias, eps, offset)
        ctx.save_for_backward(x, gain, bias, statistics)
        ctx.offset = offset
        ctx.set_materialize_grads(False)
        return out, x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, added: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return added, None, None, None, None
        x, gain, bias, statistics = ctx.saved_tensors
        added = None if added is None else added.contiguous()
        given = gradient.contiguous(), added, x.contiguous()
        of_x, sums = norm_gradients(*given, gain, statistics, centered=bias is not None, offset=ctx.offset)
        of_gain, *of_bias = sums.sum(0)
        return of_x, hand_over(gain, of_gain), hand_over(bias, *of_bias) if of_bias else None, None, None


def _sizes(x: Tensor) -> dict[str, int]:
    """Rows at once, which are several of narrow ones, as of a head; and of a row all of its numbers. The interpreter
    takes as long for a row as for many."""
    block = 1 << (x.shape[-1] - 1).bit_length()
    rows = min(_ROWS, max(1, 1024 // block)) if x.is_cuda else _ROWS
    return {"ROWS": rows, "BLOCK": block, "num_warps": max(4, block // 256)}


@torch.library.custom_op("pretrain::norm", mutates_args=())
def norm(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """`kernels.norms.normed` of x [..., F]: (norm, statistics [2, rows])."""
    from pretrain.models.triton.kernels import norms as kernels

    out, statistics, sizes = torch.empty_like(x), _statistics(x), _sizes(x)
    shape = *rows_columns(x), eps
    kernels.normed[-(-rows_columns(x)[0] // sizes["ROWS"]),](
        x, gain, bias, out, statistics, *shape, CENTERED=bias is not None, OFFSET=offset, **sizes
    )
    return out, statistics


@norm.register_fake
def _(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _statistics(x)


def _statistics(x: Tensor) -> Tensor:
    return x.new_empty((2, rows_columns(x)[0]), dtype=torch.float32)


@torch.library.custom_op("pretrain::norm_gradients", mutates_args=())
def norm_gradients(
    gradient: Tensor, added: Tensor | None, x: Tensor, gain: Tensor, statistics: Tensor, *, centered: bool,
    offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`kernels.norms.gradients`: (gradient of x, plus `added`; sums over the rows of each program [programs, 1 or 2,
    F])."""
    from pretrain.models.triton.kernels import norms as kernels

    of_x, sums, sizes = torch.empty_like(x), _sums(x, centered), _sizes(x)
    tensors = gradient, added, x, gain, statistics, of_x, sums
    options = {"CENTERED": centered, "OFFSET": offset, "ADDS": added is not None, "TILES": _ROWS // sizes["ROWS"]}
    kernels.gradients[len(sums),](*tensors, *rows_columns(x), **options, **sizes)
    return of_x, sums


@norm_gradients.register_fake
def _(
    gradient: Tensor, added: Tensor | None, x: Tensor, gain: Tensor, statistics: Tensor, *, centered: bool,
    offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x), _sums(x, centered)


def _sums(x: Tensor, centered: bool) -> Tensor:
    return x.new_empty((-(-rows_columns(x)[0] // _ROWS), 1 + centered, x.shape[-1]), dtype=torch.float32)
