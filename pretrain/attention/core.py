"""The attention module that megatron-core's layers use: decides who sees whom, and gives it whole sequences where ranks
share them."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.alibi import falling, slopes
from pretrain.attention.cache import LayerCache
from pretrain.attention.exchange import own_positions, whole_sequences
from pretrain.attention.patterns.base import Kernel, masked
from pretrain.attention.patterns.heads import HeadPatterns
from pretrain.attention.relative import Biases, bias_of_distances, by_distance
from pretrain.attention.rotary import frequencies, gain
from pretrain.attention.runs import Runs, by_runs, seen_in_runs, weights_in_runs
from pretrain.attention.shaw import ShawAttention
from pretrain.config.attention import Dense
from pretrain.config.model import Model
from pretrain.config.positions import RotaryPositions, ShawPositions
from pretrain.random.dropout import Dropout

Kind = Literal["encoder", "decoder", "cross"]
"""which attention of a layer: an encoder's, whose queries see what comes later too; a decoder's; a decoder's over the
encoder's positions"""


@dataclass(frozen=True)
class AttentionInputs:
    """What attention is told besides queries, keys and values. Takes the place of megatron-core's mask, which its
    layers hand on without a look."""

    positions_BS: Tensor
    """of the queries, on this context rank: what rotary positions turn by"""
    shown_BK: Tensor | None = None
    """bool, of whole sequences: keys that every query sees: those that are not padding, or a prefix; None: all, and in
    a decoder none besides what comes before"""
    runs: Runs | None = None
    """of packed rows, their documents; of an encoder's, each row up to its last position that is not padding"""
    padded_runs: bool = False
    """some runs have padding in them"""
    cache: LayerCache | None = None
    """keys and values of positions that were read before, which these follow"""


class CoreAttention(MegatronModule):
    """softmax(q k^T / sqrt(d) + bias) v. Built from a spec that carries `model`, `kind` and `kernel`; scores with a
    bias by distance are not divided by sqrt(d), as T5's are not."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        model: Model,
        kind: Kind,
        kernel: Kernel,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.causal, self.kernel = kind == "decoder", kernel
        before = 0 if kind == "encoder" else model.stacks[0]
        pattern = Dense() if kind == "cross" else model.attention.of_layer(layer_number - 1 - before)
        ranks = pg_collection.tp.size() * pg_collection.cp.size()
        part = pg_collection.tp.rank() * pg_collection.cp.size() + pg_collection.cp.rank()
        self.heads = HeadPatterns(pattern, layer_number - 1, model.heads // ranks, part, kind == "decoder")
        self.biased = model.positions.name == "relative"
        falls = model.positions.name == "alibi" and kind != "cross"
        self.slopes = [slopes(model.heads)[head] for head in self.heads.heads] if falls else None
        self.rotate, self.attended = config.kernels.apply_rope, config.kernels.attended
        self.rotary = model.positions if isinstance(model.positions, RotaryPositions) else None
        self.scale = 1.0 if self.biased else model.dim_per_head**-0.5
        self.distance, self.cap = model.relative_max_distance, model.attention_logit_softcap
        self.context = pg_collection.cp
        self.shaw: ShawAttention | None = None
        if isinstance(model.positions, ShawPositions) and kind != "cross":
            heads = model.heads // pg_collection.tp.size()
            self.shaw = ShawAttention(model.positions, heads, model.dim_per_head, pg_collection)
        self.dropout = Dropout(
            config.attention_dropout, shared_by=("tensor", "context"), compute=config.kernels.dropout
        )

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionInputs,
        attention_bias: Tensor | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        """[sequence, batch, heads, width] each -> [sequence, batch, heads * width]; with context parallelism this
        rank's slice of the sequence, of queries and of keys. `attention_bias`: [buckets, heads] added to scores by
        distance. Queries are the last of the keys' positions, but where a decoder reads an encoder's."""
        inputs = attention_mask
        if self.rotary is not None:
            turns = frequencies(self.rotary, query.shape[-1], self.heads.dense, query.device)
            larger, neighbours = gain(self.rotary, self.heads.dense), self.rotary.interleaved
            query, key = (self.rotate(x, inputs.positions_BS, turns, neighbours, larger) for x in (query, key))
        if self.context.size() > 1:
            query, key, value = self._whole(query, key, value)
            if attention_bias is not None:
                attention_bias = attention_bias.chunk(self.context.size(), dim=1)[self.context.rank()]
        if inputs.cache is not None:
            key, value = inputs.cache.extended(key, value, inputs.positions_BS)
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if k.shape[1] < q.shape[1]:  # a head of keys is read by several of queries, which are neighbours
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        out = self.attended(self._attend, q, k, v, inputs, attention_bias).permute(2, 0, 1, 3)
        return (own_positions(out, self.context) if self.context.size() > 1 else out).flatten(2)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs, table: Tensor | None
    ) -> Tensor:  # fmt: skip
        """[B, H, queries, width] of whole sequences; by the pattern's parts if nothing else hides or weighs keys."""
        dropout = self.dropout if self.dropout.active else None
        if self.shaw is not None:
            seen, distances = self._seen_at_distances(q, k, inputs)
            out: Tensor = self.shaw(q, k, v, seen, distances, self.scale, dropout)
            return out
        if inputs.cache is not None and inputs.cache.ragged:
            return self._attend_by_position(q, k, v, inputs, table)
        in_runs = not self.causal and inputs.runs is not None and not inputs.padded_runs
        alone = inputs.shown_BK is None or in_runs  # nothing hides but runs
        biases = self._biases(table, not self.causal or inputs.shown_BK is not None, q.device)
        by_parts = alone and not self.biased and biases is None and (self.causal or not self.heads.dense)
        if by_parts and inputs.runs is None:
            return self.heads.attend(q, k, v, self.scale, self.kernel, dropout, self.cap)
        if by_parts and inputs.runs is not None and dropout is None:
            attend = partial(self.heads.attend, scale=self.scale, kernel=self.kernel, dropout=None, cap=self.cap)
            return by_runs(attend, q, k, v, inputs.runs)
        if alone and self.causal and biases is not None and inputs.runs is not None and dropout is None:
            return by_runs(partial(self._attend_biased, biases=biases), q, k, v, inputs.runs)
        bias = None if biases is None else by_distance(biases, q.shape[2], k.shape[2], q.device)
        if not self.causal and bias is None:
            bias = self._weights(k.shape[2], inputs.runs, q.device)
        return masked(q, k, v, self._seen(q, k, inputs), bias, self.scale, self.kernel, dropout, self.cap)

    def _attend_biased(self, q: Tensor, k: Tensor, v: Tensor, biases: Biases) -> Tensor:
        """Of one document."""
        length = q.shape[2]
        seen = self.heads.mask(length, length, True, q.device)
        bias = by_distance(biases, length, length, q.device)
        return masked(q, k, v, seen, bias, self.scale, self.kernel, None, self.cap)

    def _biases(self, table: Tensor | None, both_ways: bool, device: torch.device) -> Biases | None:
        """Of scores by distance: T5's `table`, or ALiBi's slopes."""
        if table is not None:
            return lambda distances: bias_of_distances(table, distances, both_ways, self.distance)
        if self.slopes is not None:
            return partial(falling, torch.tensor(self.slopes, device=device))
        return None

    def _attend_by_position(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: AttentionInputs, table: Tensor | None
    ) -> Tensor:  # fmt: skip
        """Likewise, of a decoder whose rows have read different numbers of positions before these queries. A prefix
        comes before all of them, so it is seen anyway, but its biases are of both ways."""
        seen_BHQK, distances_B1QK = self._by_position(k, inputs)
        biases = self._biases(table, inputs.shown_BK is not None, k.device)
        bias = None if biases is None else biases(distances_B1QK[:, 0]).permute(0, 3, 1, 2)
        return masked(q, k, v, seen_BHQK, bias, self.scale, self.kernel, None, self.cap)

    def _by_position(self, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """What is seen, [B, H or 1, Q, K], and distances of keys from their queries, [B, 1, Q, K]."""
        query_BQ1, key_K = inputs.positions_BS[:, :, None], torch.arange(k.shape[2], device=k.device)
        seen_BHQK = (key_K <= query_BQ1)[:, None] & self.heads.sees(query_BQ1, key_K)
        return seen_BHQK, (key_K - query_BQ1)[:, None]

    def _seen_at_distances(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor | None, Tensor]:
        """Likewise, whatever rows have read; what is seen may be None, everything, and distances [Q, K]."""
        if inputs.cache is not None and inputs.cache.ragged:
            return self._by_position(k, inputs)
        queries, keys = q.shape[2], k.shape[2]
        key_K = torch.arange(keys, device=k.device)
        return self._seen(q, k, inputs), key_K - key_K[keys - queries :, None]

    def _weights(self, length: int, runs: Runs | None, device: torch.device) -> Tensor | None:
        """What an encoder's pattern adds to scores, broadcastable to [batch, heads, length, length]; None: nothing."""
        if runs is None or not self.heads.pattern.weighs:
            return self.heads.weights(length, device)

        def of_run(positions: int) -> Tensor:
            found = self.heads.weights(positions, device)
            return torch.zeros(1, positions, positions, device=device) if found is None else found

        return weights_in_runs(runs, length, of_run, device)

    def _seen(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Tensor | None:
        """Bool, broadcastable to [batch, heads, queries, keys]; None: everything."""
        queries, keys, device = q.shape[2], k.shape[2], q.device
        everything: Tensor | None
        if inputs.runs is not None and (self.causal or not self.heads.dense):
            everything = seen_in_runs(inputs.runs, keys, lambda n: self.heads.mask(n, n, self.causal, device), device)
            if self.causal:
                return everything
        else:
            everything = None if self.heads.dense else self.heads.mask(queries, keys, False, device)
        shown = None if inputs.shown_BK is None else inputs.shown_BK[:, None, None, :]
        if not self.causal:
            if shown is None or everything is None:
                return shown if everything is None else everything
            alone = torch.eye(keys, dtype=torch.bool, device=device) & ~shown.mT  # padding sees itself
            return (everything & shown) | alone
        before = self.heads.mask(queries, keys, True, device)
        if shown is None:
            return before
        return before | (shown if everything is None else shown & everything)

    def _whole(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.shape == key.shape:  # together, as each exchange waits for the slowest
            q, k, v = whole_sequences(torch.cat((query, key, value), dim=-1), self.context).chunk(3, dim=-1)
        else:
            if (repeats := self.context.size() // key.shape[2]) > 1:  # of fewer heads than ranks, each goes to several
                key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
            q = whole_sequences(query, self.context)
            k, v = whole_sequences(torch.cat((key, value), dim=-1), self.context).chunk(2, dim=-1)
        return q, k, v
