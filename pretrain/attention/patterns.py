"""Which keys a query sees: one function and one row of PATTERNS per pattern.

Shapes: B batch, H heads, Q queries, K keys, D head width. Queries are the last Q of the K positions, so Q = K in
training and Q < K when keys come from a cache. All go through torch's scaled-dot-product kernels, and none holds a
Q x K score matrix on the training path; but with dropout, whose elements those kernels choose themselves, the
probabilities are written out: Q x K of them if dense, Q x 2 windows if banded.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Drop = Callable[[Tensor], Tensor] | None  # of probabilities [B, H, Q, keys]
Pattern = Callable[[Tensor, Tensor, Tensor, int, Drop], Tensor]


def dense(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, window: int, dropout: Drop) -> Tensor:
    """Causal attention over every earlier position. Returns [B, H, Q, D]. `window` is not used."""
    queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
    if dropout is not None:
        visible_QK = _visible(queries, keys, keys, q_BHQD.device)
        return dropout(_probabilities(q_BHQD, k_BHKD, visible_QK)) @ v_BHKD
    if queries == keys:
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, is_causal=True)
    mask = None if queries == 1 else _visible(queries, keys, keys, q_BHQD.device)
    return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=mask)


def banded(q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, window: int, dropout: Drop) -> Tensor:
    """Causal attention over the last `window` positions, the query's own included. Returns [B, H, Q, D].

    Exact, in time and memory linear in the length: each chunk of `window` queries meets only its own chunk of keys
    and the one before it.
    """
    queries, keys = q_BHQD.shape[2], k_BHKD.shape[2]
    if keys <= window:
        return dense(q_BHQD, k_BHKD, v_BHKD, window, dropout)
    if queries < keys:
        assert dropout is None, "nothing drops out while keys come from a cache"
        seen = min(keys, window + queries - 1)
        k_BHKD, v_BHKD = k_BHKD[:, :, keys - seen :], v_BHKD[:, :, keys - seen :]
        mask = None if queries == 1 else _visible(queries, seen, window, q_BHQD.device)
        return F.scaled_dot_product_attention(q_BHQD, k_BHKD, v_BHKD, attn_mask=mask)
    batch, heads, _, width = q_BHQD.shape
    chunks = -(-queries // window)
    padding = chunks * window - queries
    # N = B * H folded, C chunks, W window: chunks take the place of heads.
    q_NCWD = F.pad(q_BHQD, (0, 0, 0, padding)).reshape(batch * heads, chunks, window, width)
    k_NC2WD, v_NC2WD = (_with_previous(x, window, padding) for x in (k_BHKD, v_BHKD))
    band_W2W = _visible(window, 2 * window, window, q_BHQD.device)
    mask_C12W = band_W2W.expand(chunks, window, 2 * window).clone()
    mask_C12W[0, :, :window] = False  # nothing comes before the first chunk
    if dropout is None:
        out_NCWD = F.scaled_dot_product_attention(q_NCWD, k_NC2WD, v_NC2WD, attn_mask=mask_C12W)
    else:
        p_NCW2W = _probabilities(q_NCWD, k_NC2WD, mask_C12W)
        out_NCWD = dropout(p_NCW2W.view(batch, heads, -1, 2 * window)).view_as(p_NCW2W) @ v_NC2WD
    return out_NCWD.reshape(batch, heads, chunks * window, width)[:, :, :queries]


def masked(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, bias: Tensor | None, scale: float, dropout: Drop
) -> Tensor:
    """Attention with `bias` added to the scores, where `visible` (bool; None: everywhere); both broadcastable to
    [B, H, Q, K]. Returns [B, H, Q, D]."""
    if dropout is not None:
        return dropout(_probabilities(q, k, visible, bias, scale)) @ v
    mask = visible
    if bias is not None:
        mask = bias.to(q.dtype)
        mask = mask if visible is None else mask.masked_fill(~visible, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def causal(queries: int, keys: int, device: torch.device) -> Tensor:
    """Bool [queries, keys]: what comes before each query and itself, the queries being the last of the keys'."""
    return _visible(queries, keys, keys, device)


def within_documents(documents_BS: Tensor, kinds: Sequence[str], window: int, dtype: torch.dtype) -> Tensor:
    """[B, patterns, S, S], for `masked` to add to scores: 0 where a query sees the key, which each of the `kinds` of
    pattern says and which is of the query's own document; -inf elsewhere. Padding sees padding.

    Of numbers and not bool, since torch would make numbers of it again in each layer, and keep them for the gradient.
    """
    length = documents_BS.shape[1]
    reach = {"dense": length, "banded": window}
    pattern_PSS = torch.stack([_visible(length, length, reach[kind], documents_BS.device) for kind in kinds])
    same_BSS = documents_BS[:, :, None] == documents_BS[:, None, :]
    seen_BPSS = pattern_PSS & same_BSS[:, None]
    return torch.zeros(seen_BPSS.shape, dtype=dtype, device=seen_BPSS.device).masked_fill_(~seen_BPSS, -torch.inf)


def _with_previous(x_BHKD: Tensor, window: int, padding: int) -> Tensor:
    """[B, H, K, D] -> [B * H, C, 2W, D]: each chunk of keys behind the one before it."""
    batch, heads, _, width = x_BHKD.shape
    padded = F.pad(x_BHKD, (0, 0, window, padding)).reshape(batch * heads, -1, window, width)
    return torch.cat([padded[:, :-1], padded[:, 1:]], dim=2)


def _probabilities(
    q: Tensor, k: Tensor, visible: Tensor | None, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T + bias) over the visible keys: [..., queries, keys], the softmax in fp32. `scale` is
    1 / sqrt(D) unless given."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill_(~visible, -torch.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)


def _visible(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Bool [queries, keys]: causal within `window`, the queries being the last of the keys' positions."""
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (distance >= 0) & (distance < window)


PATTERNS: dict[str, Pattern] = {"dense": dense, "banded": banded}
