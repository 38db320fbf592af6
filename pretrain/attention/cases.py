"""Attention cases, and the backends that compute them.

`AttentionCase` says what one call of attention is about besides its queries, keys and values. A provider of kernels
(`models/kernels.py`) has an ordered list of backends (`backends.py`), and the first whose condition holds computes the
case. There is no other branch.

Shapes: B batch, H heads, Q queries, K keys, D head dimension. Queries are the last Q of the K positions, except in
cross-attention and where rows of a cache have different lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pretrain.attention.alibi import AlibiBias
from pretrain.attention.packed import PackedSegments, bias_of_segments, mask_of_segments
from pretrain.attention.patterns.base import Drop, score_mask
from pretrain.attention.patterns.heads import HeadRules
from pretrain.attention.relative import Biases, by_distance
from pretrain.attention.score_masks import ScoreMask, ScoreMasks
from pretrain.config.patterns.base import MaskRule


class DistanceVectors(Protocol):
    """Attention with vectors of distances: see `shaw.ShawAttention`, `disentangled.DisentangledAttention` and
    `distance_scores.DistanceScores`."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, distances: Tensor, scale: float, dropout: Drop
    ) -> Tensor: ...  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KeyPlaces:
    """What rows say of all of their positions, over full sequences: columns of `data_pipeline.batch.Rows`. None: what
    is said there of rows without the column."""

    positions_BK: Tensor | None = None
    segments_BK: Tensor | None = None
    order_BK: Tensor | None = None
    first_B: Tensor | None = None
    """the first key of each row that there is; None: there are all"""


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One call of attention, besides its tensors."""

    heads: HeadRules
    """the mask rule of each head, and whether it is causal"""
    queries: int
    keys: int
    device: torch.device
    scale: float
    softcap: float | None = None
    dropout: Drop = None
    bias: Biases | None = None
    """added to scores by distance: T5's tables, or ALiBi's slopes"""
    learns_bias: bool = False
    """the bias gets a gradient, if not in this pass then in the one that computes the layer again"""
    key_mask_BK: Tensor | None = None
    """bool: in an encoder the keys that are not padding; in a decoder a prefix that all queries attend to; None: all,
    or no prefix"""
    packed: PackedSegments | None = None
    """the documents of each row; in an encoder each row up to its last position that is not padding"""
    packed_with_padding: bool = False
    """some segments contain padding, which only `key_mask_BK` masks"""
    positions_BQ: Tensor | None = None
    """positions of queries, where the rows of a cache have different lengths"""
    places: KeyPlaces | None = None
    """places of keys, whose positions are the queries' as well; only where there are `distance_vectors`"""
    distance_vectors: DistanceVectors | None = None
    """set in a model whose tokens meet vectors of distances"""
    score_masks: ScoreMasks = field(default_factory=ScoreMasks)
    """the masks that this micro-batch has already made"""

    @property
    def causal(self) -> bool:
        return self.heads.causal

    @property
    def by_pattern(self) -> bool:
        """Whether the pattern and causality alone mask or weigh keys, and do mask some."""
        masked = self.key_mask_BK is not None or self.packed is not None or self.positions_BQ is not None
        return not masked and self.bias is None and (self.causal or not self.heads.dense)

    @property
    def packed_encoder(self) -> bool:
        """Whether it is an encoder's attention within texts that lie side by side in a row."""
        return not self.causal and self.packed is not None and self.key_mask_BK is None

    @property
    def by_segments(self) -> bool:
        """Whether rows are packed and each segment is computed as a sequence of its own."""
        if self.packed is None or self.positions_BQ is not None:
            return False
        if self.causal:
            return self.key_mask_BK is None
        splits = self.packed_encoder or not self.heads.dense
        return not self.packed_with_padding and self.bias is None and splits

    @property
    def written_out(self) -> bool:
        """Whether scores or probabilities are modified elementwise, which fused kernels do not support."""
        return self.dropout is not None or self.softcap is not None

    @property
    def cached(self) -> bool:
        """Whether some keys come from a cache: there are fewer queries than keys."""
        return self.queries != self.keys

    @property
    def rule(self) -> MaskRule:
        """The mask rule that all heads have."""
        (rule,) = self.heads.indices_by_rule(self.keys)
        return rule

    def mask(self) -> Tensor | None:
        """Bool, broadcast to [B, H, Q, K]; None: nothing is masked."""
        if self.positions_BQ is not None:
            query_BQ1, key_K = self.positions_BQ[:, :, None], torch.arange(self.keys, device=self.device)
            # A prefix lies before all of these queries, so the order of positions admits it.
            return (key_K <= query_BQ1)[:, None] & self.heads.attends(query_BQ1, key_K)
        return self._causal_mask() if self.causal else self._encoder_mask()

    def score_bias(self) -> Tensor | None:
        """A bias added to scores, broadcast to [B, H, Q, K]; None: none."""
        if self.bias is not None:
            if self.positions_BQ is not None:
                return self.bias(self.distances()[:, 0]).permute(0, 3, 1, 2)
            return by_distance(self.bias, self.queries, self.keys, self.device)
        if self.causal:
            return None
        if self.packed is None or not self.heads.pattern.weighs:
            return self.heads.weights(self.keys, self.device)

        def of_segment(length: int) -> Tensor:
            added = self.heads.weights(length, self.device)
            return torch.zeros(1, length, length, device=self.device) if added is None else added

        return bias_of_segments(self.packed, self.keys, of_segment, self.device)

    def shared_score_mask(self, dtype: torch.dtype) -> ScoreMask | None:
        """ALiBi's biases under the mask, which layers share; None: the bias is learned, or there is none."""
        if not isinstance(self.bias, AlibiBias):
            return None

        def make() -> Tensor:
            bias = self.score_bias()
            assert bias is not None
            return score_mask(self.mask(), bias, dtype)

        rules = self.heads.rules(self.keys)
        key = (self.bias.slopes, rules, self.causal, self.queries, self.keys, dtype, self.device)
        of_rows = (self.key_mask_BK, self.packed, self.positions_BQ)
        if all(columns is None for columns in of_rows):
            return self.score_masks.shared(key, make)
        return self.score_masks.of_batch((key, *(columns is None for columns in of_rows)), make)

    def distances(self) -> Tensor:
        """Distances of keys from their queries: [Q, K], or [B, 1, Q, K] where they depend on the row."""
        if self.places is not None and self.places.positions_BK is not None:
            positions_BK = self.places.positions_BK
            return (positions_BK[:, None, :] - positions_BK[:, -self.queries :, None])[:, None]
        key_K = torch.arange(self.keys, device=self.device)
        if self.positions_BQ is not None:
            return (key_K - self.positions_BQ[:, :, None])[:, None]
        return key_K - key_K[self.keys - self.queries :, None]

    def _causal_mask(self) -> Tensor:
        if self.packed is not None:
            return self._segment_mask(self.packed)
        attends = self.heads.mask(self.queries, self.keys, self.device)
        if self.places is not None and self.places.first_B is not None:
            key_K = torch.arange(self.keys, device=self.device)
            return attends & (key_K >= self.places.first_B[:, None])[:, None, None]
        if self.key_mask_BK is None:
            return attends
        key_K = torch.arange(self.keys, device=self.device)
        in_prefix = self.heads.attends(key_K[self.keys - self.queries :, None], key_K)  # in any order
        return attends | (self.key_mask_BK[:, None, None, :] & in_prefix)

    def _encoder_mask(self) -> Tensor | None:
        attends: Tensor | None
        if self.heads.dense and not self.packed_encoder:
            attends = None
        elif self.packed is not None:
            attends = self._segment_mask(self.packed)
        else:
            attends = self.heads.mask(self.queries, self.keys, self.device)
        order_BK = None if self.places is None else self.places.order_BK
        if order_BK is not None:
            before = (order_BK[:, None, :] <= order_BK[:, -self.queries :, None]) & (order_BK % 2 == 0)[:, None, :]
            if self.places is not None and self.places.first_B is not None:
                exists_BK = torch.arange(self.keys, device=self.device) >= self.places.first_B[:, None]
                before = before & exists_BK[:, None, :]
            attends = before[:, None] if attends is None else before[:, None] & attends
        shown = None if self.key_mask_BK is None else self.key_mask_BK[:, None, None, :]
        if shown is None or attends is None:
            return shown if attends is None else attends
        itself = torch.eye(self.keys, dtype=torch.bool, device=self.device) & ~shown.mT  # padding attends to itself
        return (attends & shown) | itself

    def _segment_mask(self, packed: PackedSegments) -> Tensor:
        return mask_of_segments(packed, self.keys, lambda n: self.heads.mask(n, n, self.device), self.device)


Attend = Callable[[AttentionCase, Tensor, Tensor, Tensor], Tensor]
"""(case, q, k, v [B, H, positions, D]) -> [B, H, Q, D]"""


@dataclass(frozen=True, kw_only=True)
class AttentionBackend:
    """One way to compute attention."""

    case: str
    """the cases that it computes, for a reader"""
    runs: str
    """what it runs, for a reader"""
    applies: Callable[[AttentionCase], bool]
    """whether it computes a case that no backend before it in the list computes"""
    compute: Callable[[AttentionCase, Tensor, Tensor, Tensor, Attend], Tensor]
    """(case, q, k, v, attend): `attend` computes the cases that it splits this one into"""


def dispatch(backends: Sequence[AttentionBackend]) -> Attend:
    """Computes each case by the first of `backends` that applies."""

    def attend(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        backend = next(backend for backend in backends if backend.applies(case))
        return backend.compute(case, q, k, v, attend)

    return attend
