"""What the forms of all attention patterns share: the mask terms, and attention under any mask.

Who sees whom is a conjunction of terms: what the pattern's settings say of two positions (`Sees.sees`), what
comes before (causal), what is shown to all (padding is not, a prefix is), what lies in the same document. `masked`
computes any of them; a pattern's own form (one file each) computes its causal term exactly, and with less.

Shapes: B batch, H heads, Q queries, K keys, D head width. Queries are the last Q of the K positions, so Q = K in
training and Q < K when keys come from a cache.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pretrain.config.patterns.base import Sees
from pretrain.config.patterns.blocks import BigBirdHead
from pretrain.config.patterns.function import Function

Kernel = Callable[..., Tensor]
"""as torch's scaled_dot_product_attention"""
Drop = Callable[[Tensor], Tensor] | None
"""of probabilities [B, H, Q, keys]"""


def mask(settings: Sees, queries: int, keys: int, causal: bool, device: torch.device) -> Tensor | None:
    """Bool [Q, K]: what the pattern shows, and of that, if `causal`, what comes no later than the query. None:
    everything."""
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)
    seen = shown(settings, query, key)
    if not causal:
        return seen if isinstance(seen, Tensor) else None
    return (key <= query) & seen


def shown(settings: Sees, query: Tensor, key: Tensor) -> Tensor | bool:
    """Bool that broadcasts with positions `query` and `key`: what `settings` show."""
    if isinstance(settings, Function):  # which knows numpy's arrays
        found = settings.sees(query.cpu().numpy(), key.cpu().numpy())
        return torch.as_tensor(found, dtype=torch.bool, device=query.device)
    seen: Tensor | bool = settings.sees(query, key)
    return seen


def weights(settings: Sees, length: int, device: torch.device) -> Tensor | None:
    """[S, S]: what is added to scores of an encoder's `length` positions: the logarithm of how often a key counts.
    None: each counts once."""
    if not isinstance(settings, BigBirdHead) or not settings.settings.weighs:
        return None
    positions = torch.arange(length, device=device)
    found: Tensor = settings.times(positions[:, None], positions).log()
    return found


def masked(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, scale: float, kernel: Kernel,
    dropout: Drop, cap: float | None = None,
) -> Tensor:  # fmt: skip
    """Attention with `bias` added to the scores, where `seen` (bool; None: everywhere); both broadcastable to
    [B, H, Q, K]. Returns [B, H, Q, D]. With `dropout`, or with a `cap` of scores, these are written out."""
    if dropout is not None or cap is not None:
        shares = probabilities(q, k, seen, bias, scale, cap)
        return (shares if dropout is None else dropout(shares)) @ v
    score_mask = seen
    if bias is not None:
        score_mask = bias.to(q.dtype)
        score_mask = score_mask if seen is None else score_mask.masked_fill(~seen, -torch.inf)
    return kernel(q, k, v, attn_mask=score_mask, scale=scale)


def probabilities(
    q: Tensor, k: Tensor, seen: Tensor | None, bias: Tensor | None = None, scale: float | None = None,
    cap: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(scale q k^T + bias) over the keys that are seen: [..., queries, keys], the softmax in fp32. `scale` is
    1 / sqrt(D) unless given. With a `cap`, the scaled products lie softly between it and its opposite (Gemma 2: arXiv
    2408.00118, section 2)."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill_(~seen, -torch.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
