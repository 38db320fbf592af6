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

from pretrain.attention.packed import PackedSegments
from pretrain.attention.patterns.base import Drop
from pretrain.attention.patterns.heads import HeadRules
from pretrain.attention.query_heads import for_each_query_head
from pretrain.attention.relative import Biases
from pretrain.attention.score_masks import ScoreMasks
from pretrain.config.patterns.base import MaskRule


class DistanceVectors(Protocol):
    """Attention with vectors of distances: see `distance_attention.DistanceAttention` and
    `distance_scores.DistanceScores`."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, distances: Tensor, scale: float, dropout: Drop
    ) -> Tensor: ...  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KeyPlaces:
    """Columns of `data_pipeline.batch.Rows` about all positions of rows, over full sequences. None: what is said there
    of rows without the column."""

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
        if self.heads.common_rule is not None:
            return self.heads.common_rule
        (rule,) = self.heads.indices_by_rule(self.keys)
        return rule

    @property
    def has_several_rules(self) -> bool:
        return self.heads.common_rule is None and len(self.heads.indices_by_rule(self.keys)) > 1


Attend = Callable[[AttentionCase, Tensor, Tensor, Tensor], Tensor]
"""(case, q, k, v [B, H, positions, D]) -> [B, H, Q, D]; neighbouring heads of queries may share one of keys and
values"""


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
    grouped: bool = False
    """it takes keys and values with fewer heads than queries; otherwise they are copied for each query"""


def dispatch(backends: Sequence[AttentionBackend]) -> Attend:
    """Computes each case by the first of `backends` that applies."""

    def attend(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        backend = next(backend for backend in backends if backend.applies(case))
        if not backend.grouped:
            k, v = (for_each_query_head(x, q.shape[1]) for x in (k, v))
        return backend.compute(case, q, k, v, attend)

    return attend
