"""Sines and cosines of positions (Vaswani et al. 2017, arXiv 1706.03762, section 3.5)."""

import torch
from torch import Tensor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """[...] -> [..., width] float32: sines in the first half, cosines in the second, of wavelengths from 2 pi to
    20,000 pi. The paper interleaves the halves, which is the same up to an order of features."""
    half = width // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=positions.device, dtype=torch.float32) * 2 / width)
    angles = positions[..., None].float() * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
