"""The largest score of each head, which fused kernels do not tell: scores are computed once more, a part at a time.

For decoders, whose mask rules do not depend on the length of a row. Shapes: B batch, H heads, S positions, Q queries of
a part, K the keys up to its last one, D head dimension.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pretrain.attention.cases import AttentionCase
from pretrain.attention.query_heads import for_each_query_head
from pretrain.model_spec.logits import SCORES_OF_PART


@torch.no_grad()
def largest_scores(case: AttentionCase, q_BHSD: Tensor, k_BHSD: Tensor, real_BS: Tensor | None) -> Tensor:
    """[H] in fp32: the largest score of a pair that the case attends to, -inf if there is none. `real_BS`: positions
    that are no padding; None: all are. Queries and keys are the same positions."""
    k_BHSD = for_each_query_head(k_BHSD, q_BHSD.shape[1])
    found = torch.full((q_BHSD.shape[1],), -torch.inf, device=q_BHSD.device)
    if case.packed is None:
        return torch.maximum(found, _largest(case, q_BHSD, k_BHSD, real_BS))
    alone = replace(case, packed=None, key_mask_BK=None)
    for row, segments in enumerate(case.packed):
        for begin, end in segments:
            of_segment = slice(row, row + 1), slice(None), slice(begin, end)
            found = torch.maximum(found, _largest(alone, q_BHSD[of_segment], k_BHSD[of_segment], None))
    return found


def _largest(case: AttentionCase, q_BHSD: Tensor, k_BHSD: Tensor, real_BS: Tensor | None) -> Tensor:
    parts = [part.amax((0, 2, 3)) for part in _masked_scores(case, q_BHSD, k_BHSD, real_BS)]
    return torch.stack(parts).amax(0) * case.scale


def _masked_scores(
    case: AttentionCase, q_BHSD: Tensor, k_BHSD: Tensor, real_BS: Tensor | None
) -> Iterator[Tensor]:  # fmt: skip
    """[B, H, Q, K] in fp32, not multiplied by the scale, for the queries of each part; -inf for what is masked."""
    batch, heads, length, _ = q_BHSD.shape
    positions_S = torch.arange(length, device=q_BHSD.device)
    size = max(1, SCORES_OF_PART // (batch * heads * length))
    for begin in range(0, length, size):
        end = min(begin + size, length)
        last = end if case.key_mask_BK is None else length  # a prefix is seen by queries before it
        query_Q1, key_K = positions_S[begin:end, None], positions_S[:last]
        seen = key_K <= query_Q1
        if case.key_mask_BK is not None:
            seen = seen | case.key_mask_BK[:, None, None, :]
        seen = seen & case.heads.attends(query_Q1, key_K)
        if real_BS is not None:
            seen = seen & real_BS[:, None, begin:end, None]
        scores = _product(q_BHSD[:, :, begin:end], k_BHSD[:, :, :last])
        yield scores.masked_fill_(~seen, -torch.inf)


def _product(q_BHQD: Tensor, k_BHKD: Tensor) -> Tensor:
    """q k^T in fp32, of numbers as they are."""
    if not q_BHQD.is_cuda or q_BHQD.dtype == torch.float32:
        return q_BHQD.float() @ k_BHKD.float().mT
    products = torch.bmm(q_BHQD.flatten(0, 1), k_BHKD.flatten(0, 1).mT, out_dtype=torch.float32)
    scores: Tensor = products.unflatten(0, q_BHQD.shape[:2])
    return scores
