"""Positions as angles that queries and keys are turned by (Su et al. 2021, arXiv 2104.09864): feature i of the first
half of a head and feature i of the second are one pair, as in Llama and GPT-NeoX."""

import torch
from torch import Tensor


def rotated(x_SBHD: Tensor, positions_BS: Tensor, base: float) -> Tensor:
    """Pair i of D / 2 turned by position * base^(-2 i / D), computed in fp32."""
    half = x_SBHD.shape[-1] // 2
    frequencies = 1 / base ** (torch.arange(half, device=x_SBHD.device, dtype=torch.float32) / half)
    angles = positions_BS.T[:, :, None, None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second = x_SBHD.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(x_SBHD.dtype)
