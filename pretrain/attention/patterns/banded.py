"""Causal attention over the last `window` positions, the query's own included: exact, in time and memory linear in the
length. Each chunk of `window` queries meets only its own chunk of keys and the one before it. With dropout the
probabilities are written out: Q x 2 windows for each head."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.attention.patterns.base import Drop, Kernel, mask, probabilities
from pretrain.attention.patterns.dense import dense
from pretrain.config.attention import Banded, Dense


def banded(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, settings: Banded, kernel: Kernel, dropout: Drop
) -> Tensor:  # fmt: skip
    """See `base.Form`."""
    queries, keys, window = q_BHQD.shape[2], k_BHKD.shape[2], settings.reach
    if keys <= window:
        return dense(q_BHQD, k_BHKD, v_BHKD, Dense(), kernel, dropout)
    if queries < keys:
        assert dropout is None, "nothing drops out while keys come from a cache"
        reached = min(keys, window + queries - 1)
        k_BHKD, v_BHKD = k_BHKD[:, :, keys - reached :], v_BHKD[:, :, keys - reached :]
        seen = None if queries == 1 else mask(settings, queries, reached, True, q_BHQD.device)
        return kernel(q_BHQD, k_BHKD, v_BHKD, attn_mask=seen)
    batch, heads, _, width = q_BHQD.shape
    chunks = -(-queries // window)
    padding = chunks * window - queries
    # N = B * H folded, C chunks, W window: chunks take the place of heads.
    q_NCWD = F.pad(q_BHQD, (0, 0, 0, padding)).reshape(batch * heads, chunks, window, width)
    k_NC2WD, v_NC2WD = (_with_previous(x, window, padding) for x in (k_BHKD, v_BHKD))
    band_W2W = mask(settings, window, 2 * window, True, q_BHQD.device)
    assert band_W2W is not None, "a band hides something"
    mask_C12W = band_W2W.expand(chunks, window, 2 * window).clone()
    mask_C12W[0, :, :window] = False  # nothing comes before the first chunk
    if dropout is None:
        out_NCWD = kernel(q_NCWD, k_NC2WD, v_NC2WD, attn_mask=mask_C12W)
    else:
        p_NCW2W = probabilities(q_NCWD, k_NC2WD, mask_C12W)
        out_NCWD = dropout(p_NCW2W.view(batch, heads, -1, 2 * window)).view_as(p_NCW2W) @ v_NC2WD
    return out_NCWD.reshape(batch, heads, chunks * window, width)[:, :, :queries]


def _with_previous(x_BHKD: Tensor, window: int, padding: int) -> Tensor:
    """[B, H, K, D] -> [B * H, C, 2W, D]: each chunk of keys behind the one before it."""
    batch, heads, _, width = x_BHKD.shape
    padded = F.pad(x_BHKD, (0, 0, window, padding)).reshape(batch * heads, -1, window, width)
    return torch.cat([padded[:, :-1], padded[:, 1:]], dim=2)
