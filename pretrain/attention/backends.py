"""The ordered list of attention backends. `docs/sparse-attention.md` shows it as a table, which a test makes from it.

Shapes: B batch, H heads, Q queries, K keys, D head dimension.
"""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from pretrain.attention import case_masks
from pretrain.attention.cases import Attend, AttentionBackend, AttentionCase
from pretrain.attention.device_copies import DeviceCopies
from pretrain.attention.packed import attend_by_segment
from pretrain.attention.patterns.banded import banded_attention
from pretrain.attention.patterns.base import Sdpa, probabilities, score_mask
from pretrain.attention.patterns.flex import flex
from pretrain.attention.patterns.heads import mask_of
from pretrain.attention.patterns.merged import disjoint, merged, share_no_query
from pretrain.attention.patterns.one_kernel import in_one_kernel, one_tile
from pretrain.attention.patterns.registry import tiles_of
from pretrain.attention.patterns.tiles import AttentionTile
from pretrain.config.attention import Banded, Dense
from pretrain.config.patterns.base import MaskRule


def attention_backends(sdpa: Sdpa) -> tuple[AttentionBackend, ...]:
    """The backends, where `sdpa` is the kernel for a mask or none."""
    return (*_without_tiles(sdpa), *_generation_backends(sdpa), *_by_tiles(sdpa))


def _without_tiles(sdpa: Sdpa) -> tuple[AttentionBackend, ...]:
    """Backends for what no tiles of a pattern can compute, and those that divide a case into simpler ones."""
    return (
        AttentionBackend(
            case="vectors of distances (`positions: shaw`, `disentangled`, `transformer_xl`)",
            runs="length x length probabilities are written out",
            applies=lambda case: case.distance_vectors is not None,
            compute=_with_distance_vectors,
        ),
        AttentionBackend(
            case="packed rows; an encoder's sparse pattern with padding at the end of rows",
            runs="each document, or each row without its padding, separately, by the rows below: patterns count "
            "positions from the document's beginning",
            applies=lambda case: case.by_segments and case.dropout is None,
            compute=_by_segment,
            grouped=True,
        ),
        AttentionBackend(
            case="`model.attention_dropout` or a softcap, banded layers of decoders, longer than the window",
            runs="length x 2 windows probabilities are written out",
            applies=lambda case: case.written_out and _is_long_band(case),
            compute=_banded,
        ),
        AttentionBackend(
            case="`model.attention_dropout` or a softcap",
            runs="length x length probabilities are written out",
            applies=lambda case: case.written_out,
            compute=_written_out,
        ),
        AttentionBackend(
            case="padding elsewhere, a prefix that all queries attend to, biases by distance, rows of a cache of "
            "different lengths, dense attention of encoders",
            runs="torch's `scaled_dot_product_attention` under a length x length mask, or without one",
            applies=lambda case: not case.by_pattern,
            compute=partial(_under_mask, sdpa=sdpa),
            grouped=True,
        ),
        AttentionBackend(
            case="heads of a layer with different patterns",
            runs="the heads of each pattern separately, by the rows below",
            applies=lambda case: case.has_several_rules,
            compute=_by_rule,
        ),
    )


def _generation_backends(sdpa: Sdpa) -> tuple[AttentionBackend, ...]:
    """Backends of new positions behind a key-value cache."""
    return (
        AttentionBackend(
            case="generation, one new position",
            runs="`scaled_dot_product_attention` over the keys that the pattern selects",
            applies=lambda case: case.cached and case.queries == 1,
            compute=partial(_one_query, sdpa=sdpa),
            grouped=True,
        ),
        AttentionBackend(
            case="generation, several new positions",
            runs="`scaled_dot_product_attention` under a mask",
            applies=lambda case: case.cached,
            compute=partial(_last_queries, sdpa=sdpa),
            grouped=True,
        ),
    )


def _by_tiles(sdpa: Sdpa) -> tuple[AttentionBackend, ...]:
    """Backends of a pattern over all positions: in one kernel, or in several tiles of it. The last one is for all."""
    return (
        AttentionBackend(
            case="dense attention; up to 256 positions; tiles that are no less work than all pairs",
            runs="`scaled_dot_product_attention`, causal or under the pattern's mask",
            applies=lambda case: in_one_kernel(_tiles(case), case.keys),
            compute=partial(_one_tile, sdpa=sdpa),
            grouped=True,
        ),
        AttentionBackend(
            case="a CPU",
            runs="torch's fused kernel for each tile; outputs are merged by their log-sum-exp",
            applies=lambda case: case.device.type == "cpu",
            compute=_merged,
        ),
        AttentionBackend(
            case="a GPU, each query in one tile (banded, dilated, blocks)",
            runs="`scaled_dot_product_attention` for each tile",
            applies=lambda case: share_no_query(_tiles(case), case.keys),
            compute=partial(_disjoint, sdpa=sdpa),
            grouped=True,
        ),
        AttentionBackend(
            case="a GPU, queries in several tiles",
            runs="torch's `flex_attention` with the pattern's mask rule, compiled",
            applies=lambda case: True,
            compute=_flex,
            grouped=True,
        ),
    )


def _with_distance_vectors(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    assert case.distance_vectors is not None
    return case.distance_vectors(
        q,
        k,
        v,
        mask=case_masks.mask(case),
        distances=case_masks.distances(case),
        scale=case.scale,
        dropout=case.dropout,
    )


def _by_segment(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    assert case.packed is not None
    alone = replace(case, packed=None, key_mask_BK=None)

    def attend_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(replace(alone, queries=q.shape[2], keys=k.shape[2]), q, k, v)

    return attend_by_segment(attend_alone, q, k, v, case.packed)


def _is_long_band(case: AttentionCase) -> bool:
    pattern = case.heads.pattern
    band = case.by_pattern and case.causal and not case.cached and isinstance(pattern, Banded)
    return band and isinstance(pattern, Banded) and case.keys > pattern.reach


def _banded(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    assert isinstance(case.heads.pattern, Banded)
    return banded_attention(
        q, k, v, settings=case.heads.pattern, scale=case.scale, dropout=case.dropout, softcap=case.softcap
    )


def _written_out(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    assert case.dropout is None or not case.cached or not case.causal, "dropout is off while keys come from a cache"
    weights = probabilities(
        q, k, mask=case_masks.mask(case), bias=case_masks.score_bias(case), scale=case.scale, softcap=case.softcap
    )
    return (weights if case.dropout is None else case.dropout(weights)) @ v


def _under_mask(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend, *, sdpa: Sdpa) -> Tensor:
    shared = case_masks.shared_score_mask(case, q.dtype)
    if shared is not None:
        out = sdpa(q, k, v, attn_mask=shared.tensor, scale=case.scale)
        shared.keep_until_backward(out)
        return out
    mask, bias = case_masks.mask(case), case_masks.score_bias(case)
    added = mask if bias is None else score_mask(mask, bias, q.dtype)
    if added is not None and case.learns_bias and not added.requires_grad:
        added.requires_grad_()  # in the first pass of a layer that is recomputed: torch chooses the kernel by it
    return sdpa(q, k, v, attn_mask=added, scale=case.scale)


def _by_rule(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    groups = list(case.heads.indices_by_rule(case.keys).values())
    outputs = []
    for indices in groups:
        heads = _head_indices(tuple(indices)).on(q.device)
        outputs.append(attend(replace(case, heads=case.heads.subset(indices)), q[:, heads], k[:, heads], v[:, heads]))
    order = _order_of_heads(tuple(index for indices in groups for index in indices))
    return torch.cat(outputs, dim=1)[:, order.on(q.device)]


@lru_cache
def _head_indices(indices: tuple[int, ...]) -> DeviceCopies:
    return DeviceCopies(indices)


@lru_cache
def _order_of_heads(indices: tuple[int, ...]) -> DeviceCopies:
    """For each head its position in `indices`."""
    return DeviceCopies(np.argsort(indices))


def _one_query(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend, *, sdpa: Sdpa) -> Tensor:
    if not isinstance(case.rule, Dense):
        selected = _keys_of_last_query(case.rule, case.keys).on(case.device)
        k, v = (x[:, :, selected] for x in (k, v))
    return sdpa(q, k, v, scale=case.scale)


@lru_cache
def _keys_of_last_query(rule: MaskRule, keys: int) -> DeviceCopies:
    """Positions that the last of `keys` positions attends to: all layers read them, and a mask on the device would make
    the host wait in each."""
    attends = rule.attends(np.array([[keys - 1]]), np.arange(keys))
    return DeviceCopies(np.flatnonzero(np.broadcast_to(attends, (1, keys))))


def _last_queries(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend, *, sdpa: Sdpa) -> Tensor:
    mask = mask_of(case.rule, case.queries, case.keys, case.causal, case.device)
    return sdpa(q, k, v, attn_mask=mask, scale=case.scale)


def _tiles(case: AttentionCase) -> tuple[AttentionTile, ...]:
    return tiles_of(case.rule, case.keys, case.causal)


def _one_tile(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend, *, sdpa: Sdpa) -> Tensor:
    (tile,) = _tiles(case)
    return one_tile(q, k, v, tile, scale=case.scale, sdpa=sdpa)


def _merged(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    return merged(q, k, v, _tiles(case), scale=case.scale)


def _disjoint(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend, *, sdpa: Sdpa) -> Tensor:
    return disjoint(q, k, v, _tiles(case), scale=case.scale, sdpa=sdpa)


def _flex(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
    return flex(q, k, v, rule=case.rule, causal=case.causal, scale=case.scale)
