"""Attention of heads under their pattern, by the backends that models use."""

from torch import Tensor

from pretrain.attention.backends import attention_backends
from pretrain.attention.cases import AttentionCase, dispatch
from pretrain.attention.fused_kernels import scaled_dot_product_attention
from pretrain.attention.patterns.base import Drop
from pretrain.attention.patterns.heads import HeadRules
from pretrain.config.patterns.base import PatternSettings

BACKENDS = attention_backends(scaled_dot_product_attention)


def head_rules(pattern: PatternSettings, heads: int, causal: bool = True) -> HeadRules:
    """All heads of the first layer."""
    return HeadRules(pattern=pattern, layer=0, heads=range(heads), causal=causal)


def case_of(heads: HeadRules, q: Tensor, k: Tensor, dropout: Drop = None) -> AttentionCase:
    scale = q.shape[-1] ** -0.5
    return AttentionCase(
        heads=heads, queries=q.shape[2], keys=k.shape[2], device=q.device, scale=scale, dropout=dropout
    )


def attend_by_pattern(
    pattern: PatternSettings, q: Tensor, k: Tensor, v: Tensor, dropout: Drop = None, causal: bool = True
) -> Tensor:
    """[B, H, Q, D], scaled by 1 / sqrt(D)."""
    heads = head_rules(pattern, q.shape[1], causal)
    return dispatch(BACKENDS)(case_of(heads, q, k, dropout), q, k, v)
