"""Attention over several tiles in one softmax, exactly, by the fused kernel of each tile.

A kernel returns, besides its output, the log-sum-exp (lse) of the scores that it computes. So the outputs of a query's
tiles are averaged by exp(lse of the tile - lse of all). The gradient of a score depends on the other tiles by the joint
output and the joint lse alone, and a kernel's backward reads exactly these two, besides the scores of its own tile,
which it recomputes (Dao et al. 2022, arXiv 2205.14135, appendix B.4). So each tile's backward is that kernel's
backward, given the joint output and lse.

torch has no public function for either. On a CPU it has the operators that its scaled_dot_product_attention calls
itself, whose behaviour `tests/unit/attention/test_merged.py` pins.

Shapes: B batch, H heads, S positions, N = B * H, D head dimension; G groups, Q queries and K keys of a tile.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.attention.patterns.base import Sdpa
from pretrain.attention.patterns.position_groups import PositionGroups
from pretrain.attention.patterns.tiles import AttentionTile

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def share_no_query(tiles: Sequence[AttentionTile], length: int) -> bool:
    """Whether each query is in one tile."""
    return sum(tile.queries.positions.size for tile in tiles) == length


def merged(q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[AttentionTile], *, scale: float) -> Tensor:
    """[B, H, S, D]: any tiles, on a CPU."""
    out: Tensor = _Merged.apply(*(_positions_first(x) for x in (q, k, v)), tiles, scale)  # type: ignore[no-untyped-call]
    return _heads_first(out, q)


def disjoint(
    q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[AttentionTile], *, scale: float, sdpa: Sdpa
) -> Tensor:  # fmt: skip
    """[B, H, S, D]: tiles that `share_no_query`, on any device."""
    q_SND, k_SND, v_SND = (_positions_first(x) for x in (q, k, v))
    outputs = []
    for tile in tiles:
        inputs = (_gathered(q_SND, tile.queries), _gathered(k_SND, tile.keys), _gathered(v_SND, tile.keys))
        mask = None if tile.causal else tile.mask_on(q.device)
        mask = None if mask is None else mask[:, None]
        out_GNQD = sdpa(*inputs, attn_mask=mask, is_causal=tile.causal, scale=scale)
        outputs.append(out_GNQD.transpose(1, 2).flatten(0, 1))
    order = torch.cat([tile.queries.on(q.device) for tile in tiles]).argsort()
    return _heads_first(torch.cat(outputs)[order], q)


class _Merged(torch.autograd.Function):
    """q, k, v [S, N, D] -> [S, N, D]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[AttentionTile], scale: float) -> Tensor:
        ctx.tiles, ctx.scale = tiles, scale
        lse = q.new_full((*q.shape[:2], 1), -torch.inf, dtype=_sum_type(q))
        outputs = []
        for tile in tiles:
            inputs = (tile.queries.read(q), tile.keys.read(k), tile.keys.read(v))
            out_GNQD, lse_GNQ = _forward(*inputs, is_causal=tile.causal, attn_mask=_bias(tile, q), scale=scale)
            outputs.append((out_GNQD, lse_GNQ[..., None]))
            tile.queries.write(lse, torch.logaddexp(tile.queries.read(lse), lse_GNQ[..., None]))
        out = torch.zeros_like(q, dtype=lse.dtype)
        for tile, (out_GNQD, lse_GNQ1) in zip(tiles, outputs, strict=True):
            tile.queries.add(out, out_GNQD * (lse_GNQ1 - tile.queries.read(lse)).exp_())
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        gradient = gradient.contiguous()
        gradients = [torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v)]
        for tile in ctx.tiles:
            of_queries = [tile.queries.read(x) for x in (gradient, q)]
            of_keys = [tile.keys.read(x) for x in (k, v)]
            joint = tile.queries.read(out), tile.queries.read(lse)[..., 0]
            of_tile = _backward(
                *of_queries, *of_keys, *joint, 0.0, tile.causal, attn_mask=_bias(tile, q), scale=ctx.scale
            )
            groups = tile.queries, tile.keys, tile.keys
            for positions, total, gradient_GNQD in zip(groups, gradients, of_tile, strict=True):
                positions.add(total, gradient_GNQD)
        return *(total.to(x.dtype) for total, x in zip(gradients, (q, k, v), strict=True)), None, None


def _positions_first(x_BHSD: Tensor) -> Tensor:
    """[S, N, D]"""
    batch, heads, length, dim = x_BHSD.shape
    return x_BHSD.permute(2, 0, 1, 3).reshape(length, batch * heads, dim)


def _heads_first(x_SND: Tensor, like_BHSD: Tensor) -> Tensor:
    """[B, H, S, D]"""
    batch, heads, length, dim = like_BHSD.shape
    return x_SND.view(length, batch, heads, dim).permute(1, 2, 0, 3)


def _gathered(x_SND: Tensor, groups: PositionGroups) -> Tensor:
    """[G, N, Q, D], of groups [G, Q]."""
    rows = x_SND[groups.on(x_SND.device)]
    return rows.view(*groups.shape, *x_SND.shape[1:]).transpose(1, 2)


def _bias(tile: AttentionTile, like: Tensor) -> Tensor | None:
    """[G or 1, 1, Q, K] added to scores; None: nothing."""
    if isinstance(tile.mask, str):
        return None
    excluded = torch.from_numpy(~tile.mask)[:, None]
    return torch.zeros(excluded.shape, dtype=like.dtype).masked_fill_(excluded, -torch.inf)


def _sum_type(like: Tensor) -> torch.dtype:
    """The type of sums over keys."""
    return torch.promote_types(like.dtype, torch.float32)
