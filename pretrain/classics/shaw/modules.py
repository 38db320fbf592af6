"""Attention with vectors of distances, which are added to keys and to values (Shaw, Uszkoreit, Vaswani 2018, arXiv
1803.02155, section 3).

    score_ij = scale q_i (k_j + a_ij)       out_i = sum_j p_ij (v_j + b_ij)       a_ij, b_ij: rows clip(j - i) of tables

The tables have few rows, one for each clipped distance. So each query is multiplied with every row once, and scores are
gathered from these products; probabilities are summed over the keys of each row before they weigh it.

Shapes: B batch, H heads, Q queries, K keys, D head width, R rows of the tables.
"""

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from torch import Tensor, nn

from pretrain.attention.distance_attention import DistanceAttention
from pretrain.attention.patterns.base import Drop
from pretrain.classics.shaw.key import ShawPositions
from pretrain.config.model import Model


class ShawAttention(DistanceAttention):
    """Attention of one layer with the tables of a tensor rank's heads. Tables that all heads share are replicated on
    tensor ranks, and their gradients are summed over these."""

    name = "shaw"

    def __init__(self, model: Model, groups: ProcessGroupCollection) -> None:
        super().__init__(model, groups)
        settings = model.positions
        assert isinstance(settings, ShawPositions), "found by their name"
        self.distance, self.per_head, self.groups = settings.max_distance, settings.per_head, groups
        heads = model.heads // groups.tp.size() if settings.per_head else 1
        shape = (heads, settings.distance_rows, model.dim_per_head)
        self.keys, self.values = (nn.Parameter(torch.empty(shape)) for _ in range(2))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, distances: Tensor, scale: float, dropout: Drop
    ) -> Tensor:  # fmt: skip
        """[B, H, Q, D], over full sequences. `mask`: bool, broadcast to [B, H, Q, K]; `distances` of keys from their
        queries, [Q, K] or [B, 1, Q, K]."""
        keys_HRD, values_HRD = (self._local_heads(table).to(q.dtype) for table in (self.keys, self.values))
        q = q * scale
        rows = (distances.clamp(-self.distance, self.distance) + self.distance).expand(*q.shape[:3], k.shape[2])
        scores = q @ k.mT + (q @ keys_HRD.mT).gather(-1, rows)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        shares = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        if dropout is not None:
            shares = dropout(shares)
        by_row_BHQR = shares.new_zeros(*shares.shape[:3], values_HRD.shape[1]).scatter_add(-1, rows, shares)
        out: Tensor = shares @ v + by_row_BHQR @ values_HRD
        return out

    def _local_heads(self, table: Tensor) -> Tensor:
        """The rows of the table for the heads that this rank computes over full sequences."""
        if not self.per_head:
            # Flat: otherwise the gradient is that of a transposed table, which gloo would sum in the wrong order.
            replicated: Tensor = copy_to_tensor_model_parallel_region(table.flatten(), group=self.groups.tp)
            return replicated.view_as(table)
        local: Tensor = table.chunk(self.groups.cp.size())[self.groups.cp.rank()]
        return local
