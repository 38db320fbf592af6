"""Positions as angles that queries and keys are turned by (Su et al. 2021, arXiv 2104.09864). Pairs of features are
neighbours, as there, or feature i of the first half of a head and feature i of the second, as in Llama and GPT-NeoX."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pretrain.config.positions import LinearScaling, Llama3Scaling, NtkScaling, RotaryPositions, YarnScaling


def apply_rope(
    x_SBHD: Tensor, positions_BS: Tensor, frequencies: Tensor, interleaved: bool = False, gain: float = 1.0
) -> Tensor:
    """Pair i turned by position * frequencies[i], of D / 2, and multiplied by `gain`; computed in fp32. `interleaved`:
    pairs are neighbours."""
    angles = positions_BS.T[:, :, None, None].float() * frequencies
    cosine, sine = (angles.cos(), angles.sin()) if gain == 1 else (angles.cos() * gain, angles.sin() * gain)
    x = x_SBHD.float()
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    out = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return out.to(x_SBHD.dtype)


def frequencies(settings: RotaryPositions, width: int, dense: bool, device: torch.device) -> Tensor:
    """[width / 2] fp32, in radians a position, of a head of `width`: base^(-2 i / width), scaled. `dense`: of a layer
    whose attention is."""
    base, scaling = (settings.local_base, None) if _is_local(settings, dense) else (settings.base, settings.scaling)
    assert base is not None, "local layers have one of their own"
    if isinstance(scaling, NtkScaling):
        base, scaling = longer_base(base, scaling, width), None
    plain = 1 / base ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    return plain if scaling is None else _SCALED[type(scaling)](plain, scaling, base)


def gain(settings: RotaryPositions, dense: bool) -> float:
    """Factor that turned queries and keys are multiplied by."""
    scaling = settings.scaling
    if not isinstance(scaling, YarnScaling) or _is_local(settings, dense):
        return 1.0
    return scaling.gain


def longer_base(base: float, scaling: NtkScaling, width: int) -> float:
    """With which the last of width / 2 wavelengths is longer by the factor, and the first as before."""
    return float(base * scaling.factor ** (width / (width - 2)))


def _is_local(settings: RotaryPositions, dense: bool) -> bool:
    return settings.local_base is not None and not dense


def _linear(plain: Tensor, scaling: LinearScaling, base: float) -> Tensor:
    return plain / scaling.factor


def _yarn(plain: Tensor, scaling: YarnScaling, base: float) -> Tensor:
    """YaRN, section 3.2, with a ramp over feature indices rather than turns, between integers, as in
    jquesnelle/yarn."""
    pairs = len(plain)

    def feature(turns: float) -> float:
        """The (fractional) feature that makes this many turns in a text of the original length."""
        return pairs * math.log(scaling.original_length / (turns * 2 * math.pi)) / math.log(base)

    first, last = (
        max(math.floor(feature(scaling.beta_fast)), 0),
        min(math.ceil(feature(scaling.beta_slow)), 2 * pairs - 1),
    )
    index = torch.arange(pairs, device=plain.device, dtype=torch.float32)
    interpolated = ((index - first) / max(last - first, 0.001)).clamp(0, 1)
    return interpolated * plain / scaling.factor + (1 - interpolated) * plain


def _llama3(plain: Tensor, scaling: Llama3Scaling, base: float) -> Tensor:
    """meta-llama/llama-models, models/llama3/model.py, apply_scaling."""
    turns = scaling.original_length * plain / (2 * math.pi)  # in a text of the original length
    smooth = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return smooth * plain + (1 - smooth) * plain / scaling.factor


_SCALED: dict[type, Callable[..., Tensor]] = {LinearScaling: _linear, Llama3Scaling: _llama3, YarnScaling: _yarn}
