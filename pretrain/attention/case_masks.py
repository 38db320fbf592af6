"""Masks and biases of an attention case, where they are written out.

Shapes: B batch, H heads, Q queries, K keys.
"""

import torch
from torch import Tensor

from pretrain.attention.alibi import AlibiBias
from pretrain.attention.cases import AttentionCase
from pretrain.attention.packed import PackedSegments, bias_of_segments, mask_of_segments
from pretrain.attention.patterns.base import score_mask
from pretrain.attention.relative import by_distance
from pretrain.attention.score_masks import ScoreMask


def mask(case: AttentionCase) -> Tensor | None:
    """Bool, broadcast to [B, H, Q, K]; None: nothing is masked."""
    if case.positions_BQ is not None:
        query_BQ1, key_K = case.positions_BQ[:, :, None], torch.arange(case.keys, device=case.device)
        # A prefix lies before all of these queries, so the order of positions admits it.
        return (key_K <= query_BQ1)[:, None] & case.heads.attends(query_BQ1, key_K)
    return _causal_mask(case) if case.causal else _encoder_mask(case)


def score_bias(case: AttentionCase) -> Tensor | None:
    """A bias added to scores, broadcast to [B, H, Q, K]; None: none."""
    if case.bias is not None:
        if case.positions_BQ is not None:
            return case.bias(distances(case)[:, 0]).permute(0, 3, 1, 2)
        return by_distance(case.bias, case.queries, case.keys, case.device)
    if case.causal:
        return None
    if case.packed is None or not case.heads.pattern.weighs:
        return case.heads.weights(case.keys, case.device)

    def segment_scores(length: int) -> Tensor:
        added = case.heads.weights(length, case.device)
        return torch.zeros(1, length, length, device=case.device) if added is None else added

    return bias_of_segments(case.packed, case.keys, segment_scores, case.device)


def shared_score_mask(case: AttentionCase, dtype: torch.dtype) -> ScoreMask | None:
    """ALiBi's biases under the mask, which layers share; None: the bias is learned, or there is none."""
    if not isinstance(case.bias, AlibiBias):
        return None

    def make() -> Tensor:
        bias = score_bias(case)
        assert bias is not None
        return score_mask(mask(case), bias, dtype)

    rules = case.heads.rules(case.keys)
    key = (case.bias.slopes, rules, case.causal, case.queries, case.keys, dtype, case.device)
    of_rows = (case.key_mask_BK, case.packed, case.positions_BQ)
    if all(columns is None for columns in of_rows):
        return case.score_masks.shared(key, make)
    return case.score_masks.batch_mask((key, *(columns is None for columns in of_rows)), make)


def distances(case: AttentionCase) -> Tensor:
    """Distances of keys from their queries: [Q, K], or [B, 1, Q, K] where they depend on the row."""
    if case.places is not None and case.places.positions_BK is not None:
        positions_BK = case.places.positions_BK
        return (positions_BK[:, None, :] - positions_BK[:, -case.queries :, None])[:, None]
    key_K = torch.arange(case.keys, device=case.device)
    if case.positions_BQ is not None:
        return (key_K - case.positions_BQ[:, :, None])[:, None]
    return key_K - key_K[case.keys - case.queries :, None]


def _causal_mask(case: AttentionCase) -> Tensor:
    if case.packed is not None:
        return _segment_mask(case, case.packed)
    attends = case.heads.mask(case.queries, case.keys, case.device)
    if case.places is not None and case.places.first_B is not None:
        key_K = torch.arange(case.keys, device=case.device)
        return attends & (key_K >= case.places.first_B[:, None])[:, None, None]
    if case.key_mask_BK is None:
        return attends
    key_K = torch.arange(case.keys, device=case.device)
    in_prefix = case.heads.attends(key_K[case.keys - case.queries :, None], key_K)  # in any order
    return attends | (case.key_mask_BK[:, None, None, :] & in_prefix)


def _encoder_mask(case: AttentionCase) -> Tensor | None:
    attends: Tensor | None
    if case.heads.dense and not case.packed_encoder:
        attends = None
    elif case.packed is not None:
        attends = _segment_mask(case, case.packed)
    else:
        attends = case.heads.mask(case.queries, case.keys, case.device)
    order_BK = None if case.places is None else case.places.order_BK
    if order_BK is not None:
        before = (order_BK[:, None, :] <= order_BK[:, -case.queries :, None]) & (order_BK % 2 == 0)[:, None, :]
        if case.places is not None and case.places.first_B is not None:
            exists_BK = torch.arange(case.keys, device=case.device) >= case.places.first_B[:, None]
            before = before & exists_BK[:, None, :]
        attends = before[:, None] if attends is None else before[:, None] & attends
    shown = None if case.key_mask_BK is None else case.key_mask_BK[:, None, None, :]
    if shown is None or attends is None:
        return shown if attends is None else attends
    itself = torch.eye(case.keys, dtype=torch.bool, device=case.device) & ~shown.mT  # padding attends to itself
    return (attends & shown) | itself


def _segment_mask(case: AttentionCase, packed: PackedSegments) -> Tensor:
    return mask_of_segments(packed, case.keys, lambda n: case.heads.mask(n, n, case.device), case.device)
