"""What the forms of all attention patterns share: the mask terms, and attention under any mask.

Who sees whom is a conjunction of terms: what the pattern's settings say of two positions (`PatternSettings.sees`), what
comes before (causal), what is shown to all (padding is not, a prefix is), what lies in the same document. `masked`
computes any of them; a pattern's own form (one file each) computes its causal term exactly, and with less.

Shapes: B batch, H heads, Q queries, K keys, D head width. Queries are the last Q of the K positions, so Q = K in
training and Q < K when keys come from a cache.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pretrain.config.attention import PatternSettings

Kernel = Callable[..., Tensor]
"""as torch's scaled_dot_product_attention"""
Drop = Callable[[Tensor], Tensor] | None
"""of probabilities [B, H, Q, keys]"""


class Form(Protocol):
    """Causal attention in a pattern, by means of its own."""

    def __call__(
        self, q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, settings: PatternSettings, kernel: Kernel, dropout: Drop
    ) -> Tensor:
        """Returns [B, H, Q, D]."""


def mask(settings: PatternSettings, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor | None:
    """Bool [Q, K]: what the pattern shows, and of that, if `causal`, what comes no later than the query. None:
    everything."""
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)
    seen: Tensor | bool = settings.sees(query, key)
    if not causal:
        return seen if isinstance(seen, Tensor) else None
    return (key <= query) & seen


def masked(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, scale: float, kernel: Kernel,
    dropout: Drop,
) -> Tensor:  # fmt: skip
    """Attention with `bias` added to the scores, where `seen` (bool; None: everywhere); both broadcastable to
    [B, H, Q, K]. Returns [B, H, Q, D]."""
    if dropout is not None:
        return dropout(probabilities(q, k, seen, bias, scale)) @ v
    score_mask = seen
    if bias is not None:
        score_mask = bias.to(q.dtype)
        score_mask = score_mask if seen is None else score_mask.masked_fill(~seen, -torch.inf)
    return kernel(q, k, v, attn_mask=score_mask, scale=scale)


def within_documents(
    documents_BS: Tensor, patterns: Sequence[PatternSettings], causal: bool, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """[B, patterns, S, S], for `masked` to add to scores: 0 where a query sees the key, which each of the `patterns`
    says and which is of the query's own document; -inf elsewhere. Padding sees padding.

    Of numbers and not bool, since torch would make numbers of it again in each layer, and keep them for the gradient.
    """
    length, device = documents_BS.shape[1], documents_BS.device
    everything = torch.ones(length, length, dtype=torch.bool, device=device)
    of_patterns = [mask(pattern, length, length, causal, device) for pattern in patterns]
    pattern_PSS = torch.stack([everything if seen is None else seen for seen in of_patterns])
    same_BSS = documents_BS[:, :, None] == documents_BS[:, None, :]
    seen_BPSS = pattern_PSS & same_BSS[:, None]
    return torch.zeros(seen_BPSS.shape, dtype=dtype, device=device).masked_fill_(~seen_BPSS, -torch.inf)


def probabilities(
    q: Tensor, k: Tensor, seen: Tensor | None, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T + bias) over the keys that are seen: [..., queries, keys], the softmax in fp32. `scale` is
    1 / sqrt(D) unless given."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill_(~seen, -torch.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
