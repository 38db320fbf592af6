"""Causal attention over every earlier position: torch's fused kernel, which holds no Q x K score matrix. With dropout,
whose elements that kernel chooses itself, the probabilities are written out: Q x K of them for each head."""

from torch import Tensor

from pretrain.attention.patterns.base import Drop, Kernel, mask, probabilities
from pretrain.config.attention import Dense


def dense(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, settings: Dense, kernel: Kernel, dropout: Drop
) -> Tensor:  # fmt: skip
    """See `base.Form`."""
    queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
    if dropout is None and queries == keys:
        return kernel(q_BHQD, k_BHKD, v_BHKD, is_causal=True)
    seen_QK = None if queries == 1 else mask(settings, queries, keys, True, q_BHQD.device)
    if dropout is not None:
        return dropout(probabilities(q_BHQD, k_BHKD, seen_QK)) @ v_BHKD
    return kernel(q_BHQD, k_BHKD, v_BHKD, attn_mask=seen_QK)
