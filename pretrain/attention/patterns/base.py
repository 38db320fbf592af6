"""Mask rules as tensors, and attention under any mask.

A query attends to a key if all of several conditions hold: the pattern's mask rule (`MaskRule.attends`), the order of
positions in a decoder, the key mask (padding, a prefix), the packed document. A kernel under a `score_mask` and
`probabilities` compute attention under any of these; a pattern's tiles (one file each) compute its causal case exactly,
with less work.

Shapes: B batch, H heads, Q queries, K keys, D head dimension. Queries are the last Q of the K positions, so Q = K in
training and Q < K when keys come from a cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pretrain.config.patterns.base import MaskRule
from pretrain.config.patterns.blocks import BigBirdHead
from pretrain.config.patterns.function import Function

Sdpa = Callable[..., Tensor]
"""called as torch's scaled_dot_product_attention, with keys and values that may have fewer heads than queries"""
Drop = Callable[[Tensor], Tensor] | None
"""dropout of probabilities [B, H, Q, keys]"""


def mask(rule: MaskRule, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor | None:
    """Bool [Q, K]: the keys that each query attends to by `rule` and, if `causal`, by order. None: all."""
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)
    attends = in_order(rule, causal, query, key)
    return attends if isinstance(attends, Tensor) else None


def in_order(rule: MaskRule, causal: bool, query: Any, key: Any) -> Any:
    """Bool, broadcast from positions `query` and `key`: `rule`, and if `causal` no key after its query."""
    attends = by_rule(rule, query, key)
    return (key <= query) & attends if causal else attends


def by_rule(rule: MaskRule, query: Tensor, key: Tensor) -> Tensor | bool:
    """Bool, broadcast from positions `query` and `key`: `rule` alone. True: it masks nothing."""
    if isinstance(rule, Function):  # it takes numpy arrays
        on_host = rule.attends(query.cpu().numpy(), key.cpu().numpy())
        return torch.as_tensor(on_host, dtype=torch.bool, device=query.device)
    attends: Tensor | bool = rule.attends(query, key)
    return attends


def weights(rule: MaskRule, length: int, device: torch.device) -> Tensor | None:
    """[S, S] added to the scores of an encoder's `length` positions: the logarithm of how often each key counts. None:
    each counts once."""
    if not counts_repeatedly(rule):
        return None
    positions = torch.arange(length, device=device)
    return log_times(rule, positions[:, None], positions)


def counts_repeatedly(rule: MaskRule) -> bool:
    """Whether `rule` counts some keys more than once."""
    return isinstance(rule, BigBirdHead) and rule.settings.weighs


def log_times(rule: MaskRule, query: Tensor, key: Tensor) -> Tensor:
    """The logarithm of how often the query at a position counts the key at another. Only if `counts_repeatedly`."""
    assert isinstance(rule, BigBirdHead)
    logarithm: Tensor = rule.times(query, key).log()
    return logarithm


def score_mask(mask: Tensor | None, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """[B or 1, H, Q, K] of `dtype`: `bias` where `mask` (bool; None: everywhere) is true, -inf elsewhere. Both
    broadcast to [B, H, Q, K]."""
    added = bias.to(dtype)
    return added if mask is None else added.masked_fill(~mask, -torch.inf)


def probabilities(
    q: Tensor, k: Tensor, *, mask: Tensor | None, bias: Tensor | None = None, scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """[..., queries, keys]: softmax(scale q k^T + bias) over the keys in `mask`, in fp32. `scale` is 1 / sqrt(D) unless
    given. With a `softcap` c, scaled products x become c tanh(x / c) (Gemma 2: arXiv 2408.00118, section 2)."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
