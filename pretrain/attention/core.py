"""The attention module that megatron-core's layers call: describes the case of each call, and exchanges slices for full
sequences under context parallelism."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.alibi import AlibiBias, slopes
from pretrain.attention.cache import LayerCache
from pretrain.attention.cases import AttentionBackend, AttentionCase, DistanceVectors, KeyPlaces, dispatch
from pretrain.attention.distance_attention import DistanceAttention, distance_attention
from pretrain.attention.distance_scores import DistanceScores
from pretrain.attention.exchange import full_sequences, own_positions
from pretrain.attention.largest_scores import largest_scores
from pretrain.attention.packed import PackedSegments
from pretrain.attention.patterns.heads import HeadRules, SegmentLengths
from pretrain.attention.patterns.projections import projection_of
from pretrain.attention.query_heads import apart_from_queries, for_each_query_head
from pretrain.attention.relative import Biases, bias_of_distances
from pretrain.attention.rotary import frequencies, gain
from pretrain.attention.score_masks import ScoreMasks
from pretrain.config.attention import Dense
from pretrain.config.model import Model
from pretrain.config.positions import (
    RotaryPositions,
    TransformerXlPositions,
)
from pretrain.random.dropout import Dropout

Kind = Literal["encoder", "decoder", "cross"]
"""attention of a layer: encoder (bidirectional self-attention), decoder (causal self-attention), or cross-attention"""


@dataclass(frozen=True, kw_only=True)
class AttentionInputs:
    """Inputs of attention besides queries, keys and values. They are passed as megatron-core's attention mask, which
    its layers hand on unread."""

    positions_BS: Tensor
    """positions of this context rank's queries: the angles of rotary positions"""
    key_mask_BK: Tensor | None = None
    """bool, over full sequences: in an encoder the keys that are not padding, in a decoder a prefix that all queries
    attend to; None: no padding, or no prefix"""
    packed: PackedSegments | None = None
    """the documents of packed rows; in an encoder each row up to its last position that is not padding"""
    packed_with_padding: bool = False
    """some segments contain padding"""
    places: KeyPlaces | None = None
    """further facts about the keys of rows whose keys are the queries' positions"""
    memory_MBH: Tensor | None = None
    """hidden states whose keys and values come before these, without a gradient; None: there are none, or the keys and
    values are made"""
    has_memory: bool = False
    """the first keys and values are those of memory"""
    real_BK: Tensor | None = None
    """bool, over full sequences: positions that are no padding, where the largest scores are kept; None: all are"""
    cache: LayerCache | None = None
    """keys and values of the positions before these"""
    score_masks: ScoreMasks = field(default_factory=ScoreMasks)
    """score masks that layers share"""


class CoreAttention(MegatronModule):
    """softmax(q k^T / sqrt(d) + bias) v. Built from a spec that carries `model`, `kind` and `backends`; scores with
    T5's bias by distance are not divided by sqrt(d), as in T5."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        model: Model,
        kind: Kind,
        backends: Sequence[AttentionBackend],
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.attend = dispatch(backends)
        before = 0 if kind == "encoder" else model.stacks[0]
        pattern = Dense() if kind == "cross" else model.attention.layer_pattern(layer_number - 1 - before)
        self.projection = projection_of(pattern, model.sequence_length, pg_collection)
        if self.projection is not None:
            pattern = Dense()  # of what is left
        ranks = pg_collection.tp.size() * pg_collection.cp.size()
        rank = pg_collection.tp.rank() * pg_collection.cp.size() + pg_collection.cp.rank()
        count = model.heads // ranks
        heads = range(rank * count, (rank + 1) * count)
        self.heads = HeadRules(pattern=pattern, layer=layer_number - 1, heads=heads, causal=kind == "decoder")
        self.at_once = self.heads
        """rules of rows without memory, which may be as long as several segments"""
        if model.memory_length and kind == "decoder":
            segments = SegmentLengths(length=model.sequence_length, memory=model.memory_length)
            self.at_once = replace(self.heads, segments=segments)
        falls = model.positions.name == "alibi" and kind != "cross"
        self.alibi = AlibiBias([slopes(model.heads)[head] for head in heads]) if falls else None
        self.rotate, self.wrap = config.kernels.apply_rope, config.kernels.attention_wrapper
        turns = isinstance(model.positions, RotaryPositions) and not model.splits_heads
        self.rotary = model.positions if isinstance(model.positions, RotaryPositions) and turns else None
        self.scale, self.softcap = model.score_scale, model.attention_logit_softcap
        self.distance = model.relative_max_distance
        self.context = pg_collection.cp
        by_distance = None if kind == "cross" else distance_attention(model, pg_collection)
        self._by_distance: str | None = None
        if by_distance is not None:
            self._by_distance = by_distance.name
            self.add_module(by_distance.name, by_distance)
        self.distance_scores: DistanceScores | None = None
        if isinstance(model.positions, TransformerXlPositions):
            self.distance_scores = DistanceScores(
                model.positions,
                pg_collection,
                heads=model.heads // pg_collection.tp.size(),
                width=model.dim_per_head,
                hidden=model.hidden,
                causal=kind == "decoder",
                segments=model.compares_segments,
            )
        self.largest_H: Tensor | None = None
        """fp32: the largest scores so far of this rank's heads in training; None: they are not kept"""
        self.dropout = Dropout(
            config.attention_dropout, shared_by=("tensor", "context"), compute=config.kernels.dropout
        )

    @property
    def by_distance(self) -> DistanceAttention | None:
        """Attention by vectors of distances; None: there are none."""
        return None if self._by_distance is None else cast(DistanceAttention, getattr(self, self._by_distance))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionInputs,
        attention_bias: Tensor | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        """[sequence, batch, heads, width] each -> [sequence, batch, heads * width of values]; with context parallelism
        this rank's slice of the sequence, of queries and of keys. `attention_bias`: [buckets, heads] added to scores by
        distance, or keys and queries of distances, [2, rows, heads, width]. Queries are the last of the keys'
        positions, except in cross-attention."""
        inputs = attention_mask
        if self.rotary is not None:
            turns = frequencies(self.rotary, query.shape[-1], self.heads.dense, query.device)
            larger, neighbours = gain(self.rotary, self.heads.dense), self.rotary.interleaved
            query, key = (self.rotate(x, inputs.positions_BS, turns, neighbours, larger) for x in (query, key))
        learns_bias = attention_bias is not None and attention_bias.requires_grad
        if self.context.size() > 1:
            query, key, value = self._complete(query, key, value)
            if attention_bias is not None:
                heads_dim = 1 if self.by_distance is None else self.by_distance.heads_dim
                attention_bias = attention_bias.chunk(self.context.size(), dim=heads_dim)[self.context.rank()]
        if self.projection is not None:
            key, value = self.projection(key, value, inputs.key_mask_BK)
            inputs = replace(inputs, key_mask_BK=None)
        if inputs.cache is not None:
            key, value = inputs.cache.extended(key, value, inputs.positions_BS)
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if k.shape[1] < q.shape[1] and q.device.type == "cpu":
            # torch's kernel for CPUs takes grouped keys, too, with the same outputs, but sums their gradients over
            # queries in another order, which would change recorded curves.
            k, v = (for_each_query_head(x, q.shape[1]) for x in (k, v))
        elif k.shape[1] < q.shape[1]:
            k, v = apart_from_queries(k, v)
        if self.largest_H is not None and torch.is_grad_enabled():  # of a recomputed layer, the second time only
            found_H = largest_scores(self._case(q, k, inputs, None, False), q, k, inputs.real_BK)
            torch.maximum(self.largest_H, found_H, out=self.largest_H)
        width = v.shape[-1]
        if width < q.shape[-1]:  # kernels take values of the width of queries
            v = F.pad(v, (0, q.shape[-1] - width))
        out = self.wrap(self._attend, q, k, v, inputs, attention_bias, learns_bias)[..., :width].permute(2, 0, 1, 3)
        return (own_positions(out, self.context) if self.context.size() > 1 else out).flatten(2)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs, table: Tensor | None, learns_bias: bool
    ) -> Tensor:  # fmt: skip
        """[B, H, Q, D], over full sequences."""
        return self.attend(self._case(q, k, inputs, table, learns_bias), q, k, v)

    def _case(
        self, q: Tensor, k: Tensor, inputs: AttentionInputs, table: Tensor | None, learns_bias: bool
    ) -> AttentionCase:  # fmt: skip
        ragged = inputs.cache is not None and inputs.cache.ragged
        vectors: DistanceVectors | None = None
        if self.by_distance is not None:
            vectors, table = self.by_distance.with_table(table), None
        if self.distance_scores is not None:
            segments_BK = None if inputs.places is None else inputs.places.segments_BK
            vectors = self.distance_scores
            if segments_BK is not None:
                vectors = partial(self.distance_scores, segments_BK=segments_BK)
        return AttentionCase(
            heads=self.heads if inputs.has_memory else self.at_once,
            queries=q.shape[2],
            keys=k.shape[2],
            device=q.device,
            scale=self.scale,
            softcap=self.softcap,
            dropout=self.dropout if self.dropout.active else None,
            bias=self._bias(table, not self.heads.causal or inputs.key_mask_BK is not None),
            learns_bias=learns_bias,
            key_mask_BK=inputs.key_mask_BK,
            packed=inputs.packed,
            packed_with_padding=inputs.packed_with_padding,
            positions_BQ=inputs.positions_BS if ragged else None,
            places=inputs.places,
            distance_vectors=vectors,
            score_masks=inputs.score_masks,
        )

    def _bias(self, table: Tensor | None, both_ways: bool) -> Biases | None:
        """Biases of scores by distance: T5's `table`, or ALiBi's slopes."""
        if table is not None:
            return lambda distances: bias_of_distances(table, distances, both_ways, self.distance)
        return self.alibi

    def _complete(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.shape == key.shape:  # in one exchange, as each waits for the slowest rank
            widths = [x.shape[-1] for x in (query, key, value)]
            q, k, v = full_sequences(torch.cat((query, key, value), dim=-1), self.context).split(widths, dim=-1)
        else:
            if (
                repeats := self.context.size() // key.shape[2]
            ) > 1:  # with fewer heads than ranks, several ranks get the same head
                key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
            q = full_sequences(query, self.context)
            k, v = full_sequences(torch.cat((key, value), dim=-1), self.context).chunk(2, dim=-1)
        return q, k, v
