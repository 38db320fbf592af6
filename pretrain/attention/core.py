"""The attention module that megatron-core's layers use: decides who sees whom, and gives it whole sequences where ranks
share them."""

from typing import Any, Literal

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.exchange import own_positions, whole_sequences
from pretrain.attention.patterns import PATTERNS, causal, masked
from pretrain.attention.relative import bias_by_distance
from pretrain.config.model import Model
from pretrain.random.dropout import Dropout

Kind = Literal["causal", "full"]  # who a query sees: what comes before it; or all that is visible


class CoreAttention(MegatronModule):
    """softmax(q k^T / sqrt(d) + bias) v. Built from a spec that carries `model` and `kind`; scores with a bias by
    distance are not divided by sqrt(d), as T5's are not."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        model: Model,
        kind: Kind,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        attention = model.attention
        self.kind = kind
        name = attention.pattern[(layer_number - 1) % len(attention.pattern)]
        self.pattern, self.number = PATTERNS[name], attention.kinds.index(name)
        self.window = attention.window
        self.biased = model.positions == "relative"
        self.scale = 1.0 if self.biased else model.head_width**-0.5
        self.distance = model.relative_distance
        self.context = pg_collection.cp
        self.dropout = Dropout(config.attention_dropout, shared_by=("tensor", "context"))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        attention_bias: Tensor | None = None, **_: Any,
    ) -> Tensor:  # fmt: skip
        """[sequence, batch, heads, width] each -> [sequence, batch, heads * width]; with context parallelism this
        rank's slice of the sequence, of queries and of keys. `attention_mask`: bool [batch, keys], over whole
        sequences: what every query sees (besides what comes before it, if causal); or, of packed rows, what
        `within_documents` makes, which says all. `attention_bias`: [buckets, heads] added to scores by distance.
        Queries are the last of the keys' positions, if causal."""
        if self.context.size() > 1:
            query, key, value = self._whole(query, key, value)
            if attention_bias is not None:
                attention_bias = attention_bias.chunk(self.context.size(), dim=1)[self.context.rank()]
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if k.shape[1] < q.shape[1]:  # a head of keys is read by several of queries, which are neighbours
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        dropout = self.dropout if self.dropout.active else None
        if attention_mask is not None and attention_mask.dim() == 4:
            own = attention_mask[:, self.number : self.number + 1]
            out = masked(q, k, v, None, own, self.scale, dropout)
        elif self.kind == "causal" and attention_mask is None and not self.biased:
            out = self.pattern(q, k, v, self.window, dropout)
        else:
            visible, bias = self._visible(q, k, attention_mask), None
            if attention_bias is not None:
                both_ways = self.kind == "full" or attention_mask is not None
                bias = bias_by_distance(attention_bias, q.shape[2], k.shape[2], both_ways, self.distance)
            out = masked(q, k, v, visible, bias, self.scale, dropout)
        out = out.permute(2, 0, 1, 3)
        return (own_positions(out, self.context) if self.context.size() > 1 else out).flatten(2)

    def _whole(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.shape == key.shape:  # together, as each exchange waits for the slowest
            q, k, v = whole_sequences(torch.cat((query, key, value), dim=-1), self.context).chunk(3, dim=-1)
        else:
            q = whole_sequences(query, self.context)
            k, v = whole_sequences(torch.cat((key, value), dim=-1), self.context).chunk(2, dim=-1)
        return q, k, v

    def _visible(self, q: Tensor, k: Tensor, everyone: Tensor | None) -> Tensor | None:
        """Bool, broadcastable to [batch, heads, queries, keys]; None: everything."""
        seen = None if everyone is None else everyone[:, None, None, :]
        if self.kind == "full":
            return seen
        before = causal(q.shape[2], k.shape[2], q.device)
        return before if seen is None else before | seen
