"""Which keys a query sees: one function and one row of PATTERNS per pattern.

Shapes: B batch, H heads, Q queries, K keys, D head width. Queries are the last Q of the K positions, so Q = K in
training and Q < K when keys come from a cache. All go through torch's scaled-dot-product kernels; none holds a
Q x K score matrix on the training path.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Pattern = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]


def dense(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, window: int, dropout: float) -> Tensor:
    """Causal attention over every earlier position. Returns [B, H, Q, D]. `window` is not used."""
    queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
    if queries == keys:
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, dropout_p=dropout, is_causal=True)
    mask = None if queries == 1 else _visible(queries, keys, keys, q_BHQD.device)
    return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=mask, dropout_p=dropout)


def banded(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, window: int, dropout: float) -> Tensor:
    """Causal attention over the last `window` positions, the query's own included. Returns [B, H, Q, D].

    Exact, in time and memory linear in the length: each chunk of `window` queries meets only its own chunk of keys
    and the one before it.
    """
    queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
    if keys <= window:
        return dense(q_BHQD, k_BHKD, v_BHKD, window, dropout)
    if queries < keys:
        seen = min(keys, window + queries - 1)
        k_BHKD, v_BHKD = k_BHKD[:, :, keys - seen :], v_BHKD[:, :, keys - seen :]
        mask = None if queries == 1 else _visible(queries, seen, window, q_BHQD.device)
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=mask, dropout_p=dropout)
    batch, heads, _, width = q_BHQD.shape
    chunks = -(-queries // window)
    padding = chunks * window - queries
    # N = B * H folded, C chunks, W window: chunks take the place of heads.
    q_NCWD = F.pad(q_BHQD, (0, 0, 0, padding)).reshape(batch * heads, chunks, window, width)
    k_NC2WD, v_NC2WD = (_with_previous(x, window, padding) for x in (k_BHKD, v_BHKD))
    band_W2W = _visible(window, 2 * window, window, q_BHQD.device)
    mask_C12W = band_W2W.expand(chunks, window, 2 * window).clone()
    mask_C12W[0, :, :window] = False  # nothing comes before the first chunk
    out_NCWD = F.scaled_dot_product_attention(q_NCWD, k_NC2WD, v_NC2WD, attn_mask=mask_C12W, dropout_p=dropout)
    return out_NCWD.reshape(batch, heads, chunks * window, width)[:, :, :queries]


def _with_previous(x_BHKD: Tensor, window: int, padding: int) -> Tensor:
    """[B, H, K, D] -> [B * H, C, 2W, D]: each chunk of keys behind the one before it."""
    batch, heads, _, width = x_BHKD.shape
    padded = F.pad(x_BHKD, (0, 0, window, padding)).reshape(batch * heads, -1, window, width)
    return torch.cat([padded[:, :-1], padded[:, 1:]], dim=2)


def _visible(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Bool [queries, keys]: causal within `window`, the queries being the last of the keys' positions."""
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (distance >= 0) & (distance < window)


PATTERNS: dict[str, Pattern] = {"dense": dense, "banded": banded}
