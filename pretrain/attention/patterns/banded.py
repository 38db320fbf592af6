"""A band: neighbouring queries with the window of keys that any of them attends to, in linear time and memory.

With dropout or a softcap, the probabilities are written out, Q x 2 windows for each head: each chunk of `window`
queries meets its own chunk of keys and the one before it.

Shapes: B batch, H heads, S positions, N = B * H, C chunks, W window, D head dimension.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.attention.patterns.base import Drop, mask, probabilities
from pretrain.attention.patterns.tiles import AttentionTile, band
from pretrain.config.attention import Banded


def banded(settings: Banded, length: int, before: bool) -> Iterator[AttentionTile]:
    """See `registry.MakeTiles`."""
    yield from band(np.arange(length)[None], settings.reach - 1, 0 if before else settings.reach - 1)


def banded_attention(
    q_BHSD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, *, settings: Banded, scale: float, dropout: Drop,
    softcap: float | None,
) -> Tensor:  # fmt: skip
    """[B, H, S, D]: causal, of sequences longer than a window, with probabilities written out."""
    window = settings.reach
    batch, heads, length, width = q_BHSD.shape
    chunks = -(-length // window)
    padding = chunks * window - length
    # Chunks take the place of heads.
    q_NCWD = F.pad(q_BHSD, (0, 0, 0, padding)).reshape(batch * heads, chunks, window, width)
    k_NC2WD, v_NC2WD = (_with_previous(x, window, padding) for x in (k_BHSD, v_BHSD))
    band_W2W = mask(settings, window, 2 * window, True, q_BHSD.device)
    assert band_W2W is not None, "a band masks some keys"
    mask_C12W = band_W2W.expand(chunks, window, 2 * window).clone()
    mask_C12W[0, :, :window] = False  # nothing comes before the first chunk
    p_NCW2W = probabilities(q_NCWD, k_NC2WD, mask=mask_C12W, scale=scale, softcap=softcap)
    if dropout is not None:
        p_NCW2W = dropout(p_NCW2W.view(batch, heads, -1, 2 * window)).view_as(p_NCW2W)
    out_NCWD = p_NCW2W @ v_NC2WD
    return out_NCWD.reshape(batch, heads, chunks * window, width)[:, :, :length]


def _with_previous(x_BHSD: Tensor, window: int, padding: int) -> Tensor:
    """[B, H, S, D] -> [B * H, C, 2W, D]: each chunk of keys behind the one before it."""
    batch, heads, _, width = x_BHSD.shape
    padded = F.pad(x_BHSD, (0, 0, window, padding)).reshape(batch * heads, -1, window, width)
    return torch.cat([padded[:, :-1], padded[:, 1:]], dim=2)
