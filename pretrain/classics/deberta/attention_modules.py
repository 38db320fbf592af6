"""Disentangled attention (DeBERTa: He et al. 2020, arXiv 2006.03654, section 3.1): content and distance of a token each
have vectors of their own.

    score_ij = (q_i k_j + q_i K_r(i - j) + k_j Q_r(i - j)) / sqrt(3 D)       K, Q: keys and queries of distances

The last term's row is the one that the authors' code reads (DeBERTa/deberta/disentangled_attention.py), where the paper
has r(j - i). The tables have few rows, one for each bucket of distances: every query and key is multiplied with every
row once, and scores are gathered from these products.

Shapes: B batch, H heads, Q queries, K keys, D head width, R rows of the tables.
"""

from functools import partial

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor

from pretrain.attention.cases import DistanceVectors
from pretrain.attention.distance_attention import DistanceAttention
from pretrain.attention.patterns.base import Drop
from pretrain.attention.pick import pick
from pretrain.classics.deberta.key import DisentangledPositions, disentangled
from pretrain.config.model import Model


def bucket(distances: Tensor, settings: DisentangledPositions) -> Tensor:
    """Row of each distance (query's position minus key's), int64, between 0 and twice the number of buckets. The
    logarithm is the authors' (`make_log_bucket_position`), in fp32 as theirs: a distance at the border of two buckets
    falls into the same one."""
    buckets = settings.num_buckets
    if buckets is None:
        half, rows = settings.max_distance, distances
    else:
        half, exact = buckets, buckets // 2
        far = distances.abs().clamp(min=exact)
        growth = (
            torch.tensor((settings.max_distance - 1) / exact).log().item()
        )  # on the CPU: a copy would be waited for
        steps = torch.ceil((far / exact).log() / growth * (exact - 1)).long() + exact
        rows = torch.where(distances.abs() <= exact, distances, distances.sign() * steps)
    return (rows + half).clamp(0, 2 * half - 1)


class DisentangledAttention(DistanceAttention):
    """See `DistanceAttention`."""

    name, heads_dim = "disentangled", 2

    def __init__(self, model: Model, groups: ProcessGroupCollection) -> None:
        super().__init__(model, groups)
        self.settings = disentangled(model.positions)

    def with_table(self, table: Tensor | None) -> DistanceVectors:
        """See `DistanceAttention`. `table`: keys and queries of distances, of this rank's heads, [2, R, H, D]."""
        return partial(self, distances_2RHD=table)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, distances: Tensor, scale: float, dropout: Drop,
        distances_2RHD: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """[B, H, Q, D], over full sequences, of as many queries as keys. `mask`: bool, broadcast to [B, H, Q, K];
        `distances` of keys from their queries, [Q, K]."""
        assert distances_2RHD is not None, "the layer makes them"
        keys_HRD, queries_HRD = distances_2RHD.to(q.dtype).transpose(1, 2)
        rows_QK = bucket(-distances, self.settings)
        q = q * scale
        scores = q @ k.mT + pick(q @ keys_HRD.mT, rows_QK)
        scores = scores + pick(k @ (queries_HRD * scale).mT, rows_QK.mT).mT
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        shares = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        if dropout is not None:
            shares = dropout(shares)
        out: Tensor = shares @ v
        return out
