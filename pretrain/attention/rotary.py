"""Positions as angles that queries and keys are turned by (Su et al. 2021, arXiv 2104.09864). Pairs of features are
neighbours, as there, or feature i of the first half of a head and feature i of the second, as in Llama and GPT-NeoX."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pretrain.config.positions import LinearScaling, Llama3Scaling, RotaryPositions


def rotated(x_SBHD: Tensor, positions_BS: Tensor, frequencies: Tensor, interleaved: bool) -> Tensor:
    """Pair i turned by position * frequencies[i], of D / 2; computed in fp32. `interleaved`: pairs are neighbours."""
    angles = positions_BS.T[:, :, None, None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    x = x_SBHD.float()
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    out = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return out.to(x_SBHD.dtype)


def frequencies(settings: RotaryPositions, width: int, dense: bool, device: torch.device) -> Tensor:
    """[width / 2] fp32, in radians a position, of a head of `width`: base^(-2 i / width), scaled. `dense`: of a layer
    whose attention is."""
    base, scaling = settings.base, settings.scaling
    if settings.local_base is not None and not dense:
        base, scaling = settings.local_base, None
    plain = 1 / base ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    return plain if scaling is None else _SCALED[type(scaling)](plain, scaling)


def _linear(plain: Tensor, scaling: LinearScaling) -> Tensor:
    return plain / scaling.factor


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """meta-llama/llama-models, models/llama3/model.py, apply_scaling."""
    turns = scaling.original_length * plain / (2 * math.pi)  # in a text of the original length
    whole = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return whole * plain + (1 - whole) * plain / scaling.factor


_SCALED: dict[type, Callable[..., Tensor]] = {LinearScaling: _linear, Llama3Scaling: _llama3}
