"""Attention over all positions by one call of a kernel."""

from collections.abc import Sequence

from torch import Tensor

from pretrain.attention.patterns.base import Sdpa
from pretrain.attention.patterns.tiles import AttentionTile


def in_one_kernel(tiles: Sequence[AttentionTile], length: int) -> bool:
    """Whether one tile has all positions in order, so that it needs no gathering."""
    return len(tiles) == 1 and tiles[0].queries.shape == tiles[0].keys.shape == (1, length)


def one_tile(q: Tensor, k: Tensor, v: Tensor, tile: AttentionTile, *, scale: float, sdpa: Sdpa) -> Tensor:
    """[B, H, S, D], of a tile that is `in_one_kernel`."""
    mask = None if tile.causal else tile.mask_on(q.device)
    mask = None if mask is None else mask[0]  # with three dimensions, torch would write the probabilities out
    return sdpa(q, k, v, attn_mask=mask, is_causal=tile.causal, scale=scale)
