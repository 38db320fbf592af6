"""The attention module that megatron-core's layers use: masks nothing, picks the layer's pattern, and gives it whole
sequences where ranks share them."""

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.exchange import own_positions, whole_sequences
from pretrain.attention.patterns import PATTERNS
from pretrain.config.schema import Attention
from pretrain.dropout import Dropout


class CoreAttention(MegatronModule):
    """softmax(q k^T / sqrt(d)) v under the pattern of this layer. Built from a spec that carries `attention`."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attention: Attention,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.pattern = PATTERNS[attention.pattern[(layer_number - 1) % len(attention.pattern)]]
        self.window = attention.window
        self.context = pg_collection.cp
        self.dropout = Dropout(config.attention_dropout, shared_by=("tensor", "context"))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **_: Any) -> Tensor:
        """[sequence, batch, heads, width] each -> [sequence, batch, heads * width]; with context parallelism this
        rank's slice of the sequence. Masks follow from the pattern and the lengths (queries are the last of the keys'
        positions); an explicit one is refused."""
        assert attention_mask is None, "attention masks follow from the pattern"
        shared = self.context.size() > 1
        if shared:  # together, as each exchange waits for the slowest
            together = whole_sequences(torch.cat((query, key, value), dim=-1), self.context)
            query, key, value = together.chunk(3, dim=-1)
        dropout = self.dropout if self.dropout.active else None
        out = self.pattern(*(x.permute(1, 2, 0, 3) for x in (query, key, value)), self.window, dropout)
        out = out.permute(2, 0, 1, 3)
        return (own_positions(out, self.context) if shared else out).flatten(2)
