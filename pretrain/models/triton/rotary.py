"""Rotary positions in one pass: each angle is computed where it is used, once for all heads, and nothing of them is
kept."""

from typing import Any

import torch
from torch import Tensor

_TILE = 1024  # pairs that a program has at a time
_INTERPRETED_TOKENS = 64  # the interpreter takes as long for a position as for many


def apply_rope(
    x_SBHD: Tensor, positions_BS: Tensor, frequencies: Tensor, interleaved: bool = False, gain: float = 1.0
) -> Tensor:
    """See `attention.rotary.apply_rope`."""
    out: Tensor = _Turned.apply(x_SBHD, positions_BS, frequencies, interleaved, gain)  # type: ignore[no-untyped-call]
    return out


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, positions: Tensor, frequencies: Tensor, interleaved: bool, gain: float
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(positions, frequencies)
        ctx.settings = interleaved, gain
        out: Tensor = turned(x, positions, frequencies, interleaved, gain)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return turned(gradient, *ctx.saved_tensors, *ctx.settings, back=True), None, None, None, None


@torch.library.custom_op("pretrain::turned", mutates_args=())
def turned(
    x: Tensor, positions: Tensor, frequencies: Tensor, interleaved: bool, gain: float, *, back: bool = False
) -> Tensor:  # fmt: skip
    """`kernels.rotary.turned` of x [S, B, heads, D], positions [B, S] and frequencies [D / 2]."""
    from pretrain.models.triton.kernels import rotary as kernels

    x = x if x.stride(-1) == 1 else x.contiguous()
    out, (places, rows, heads, width) = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.shape
    at_once = 1 if x.is_cuda else _INTERPRETED_TOKENS
    block = _power_of_two(width // 2)
    tile = {"TOKENS": at_once, "HEADS": min(_power_of_two(heads), max(1, _TILE // block)), "BLOCK": block}
    kernels.turned[-(-places * rows // at_once),](
        x, positions, frequencies, out, gain, places * rows, rows, heads, width // 2, *x.stride()[:3],
        *positions.stride(), *out.stride()[:3], INTERLEAVED=interleaved, BACK=back, **tile,
    )  # fmt: skip
    return out


@turned.register_fake
def _(
    x: Tensor, positions: Tensor, frequencies: Tensor, interleaved: bool, gain: float, *, back: bool = False
) -> Tensor:  # fmt: skip
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _power_of_two(count: int) -> int:
    """The smallest that is no less."""
    return 1 << (count - 1).bit_length()
