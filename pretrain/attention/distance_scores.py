"""Attention whose scores have a term for the distance of each key (Transformer-XL: Dai et al. 2019, arXiv 1901.02860,
section 3.3), and one for its segment (XLNet: Yang et al. 2019, arXiv 1906.08237, section 2.5).

    score_ij = scale ((q_i + u) k_j + (q_i + v) W r_(i - j) + (q_i + w) s_[j's segment is not i's])

r: sines and cosines of the distance; W, u, v, w and the two vectors s: each layer's own, of each head.

Distances are few, so each query is multiplied with all of them once, and scores are gathered from these products.

Shapes: B batch, H heads, Q queries, K keys, D head width, R distances.
"""

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor, nn

from pretrain.attention.patterns.base import Drop
from pretrain.attention.pick import pick
from pretrain.attention.sinusoids import sinusoids
from pretrain.config.positions import TransformerXlPositions


class DistanceScores(nn.Module):
    """Attention of one layer with `heads` heads of the parameters on this rank. `causal`: no key after its query is
    attended to. `segments`: scores have the term for segments."""

    def __init__(
        self,
        settings: TransformerXlPositions,
        groups: ProcessGroupCollection,
        *,
        heads: int,
        width: int,
        hidden: int,
        causal: bool,
        segments: bool,
    ) -> None:
        super().__init__()
        self.clamp, self.causal, self.context = settings.clamp, causal, groups.cp
        self.projection = nn.Parameter(torch.empty(heads, width, hidden))
        self.key_bias, self.distance_bias = (nn.Parameter(torch.empty(heads, width)) for _ in range(2))
        self.segment_bias = nn.Parameter(torch.empty(heads, width)) if segments else None
        self.segments = nn.Parameter(torch.empty(heads, 2, width)) if segments else None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None,
        distances: Tensor,
        scale: float,
        dropout: Drop,
        segments_BK: Tensor | None = None,
    ) -> Tensor:
        """[B, H, Q, D], over full sequences. `mask`: bool, broadcast to [B, H, Q, K]; `distances` of keys from their
        queries, [Q, K] or [B, 1, Q, K]; `segments_BK` of the keys, of which the last ones' positions are
        the queries', too."""
        scores = self._biased(q, self.key_bias, scale) @ k.mT
        furthest = k.shape[2] - 1
        after = 0 if self.causal else furthest
        before_R = torch.arange(-after, furthest + 1, device=q.device)  # how far a key lies before its query
        keys_HRD = self._keys(before_R, q.dtype)
        rows = ((-distances).clamp(-after, furthest) + after).expand(scores.shape)
        scores = scores + pick(self._biased(q, self.distance_bias, scale) @ keys_HRD.mT, rows)
        if self.segments is not None and self.segment_bias is not None and segments_BK is not None:
            other = (
                (segments_BK[:, None, -q.shape[2] :, None] != segments_BK[:, None, None, :]).long().expand(scores.shape)
            )
            of_segment = self._biased(q, self.segment_bias, scale) @ self._local_heads(self.segments).to(q.dtype).mT
            scores = scores + pick(of_segment, other)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        shares = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        out: Tensor = (shares if dropout is None else dropout(shares)) @ v
        return out

    def _keys(self, before_R: Tensor, dtype: torch.dtype) -> Tensor:
        """[H, R, D]: what distances are multiplied as."""
        if self.clamp is not None:
            before_R = before_R.clamp(-self.clamp, self.clamp)
        projection_HDH = self._local_heads(self.projection)
        return sinusoids(before_R, projection_HDH.shape[-1]).to(dtype) @ projection_HDH.to(dtype).mT

    def _biased(self, q: Tensor, bias_HD: Tensor, scale: float) -> Tensor:
        return (q + self._local_heads(bias_HD).to(q.dtype)[:, None]) * scale

    def _local_heads(self, parameter: Tensor) -> Tensor:
        """The rows of the heads that this rank computes over full sequences."""
        local: Tensor = parameter.chunk(self.context.size())[self.context.rank()]
        return local
