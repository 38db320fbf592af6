"""The attention module that megatron-core's layers use: splits nothing, masks nothing, picks the layer's pattern."""

from typing import Any

from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.patterns import PATTERNS
from pretrain.config.schema import Attention
from pretrain.dropout import Dropout


class CoreAttention(MegatronModule):
    """softmax(q k^T / sqrt(d)) v under the pattern of this layer. Built from a spec that carries `attention`."""

    def __init__(self, config: TransformerConfig, layer_number: int, attention: Attention, **_: Any) -> None:
        super().__init__(config=config)
        self.pattern = PATTERNS[attention.pattern[(layer_number - 1) % len(attention.pattern)]]
        self.window = attention.window
        self.dropout = Dropout(config.attention_dropout, split=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **_: Any) -> Tensor:
        """[sequence, batch, heads, width] each -> [sequence, batch, heads * width]. Masks follow from the pattern and
        the lengths (queries are the last of the keys' positions); an explicit one is refused."""
        assert attention_mask is None, "attention masks follow from the pattern"
        dropout = self.dropout if self.dropout.active else None
        out = self.pattern(*(x.permute(1, 2, 0, 3) for x in (query, key, value)), self.window, dropout)
        return out.permute(2, 0, 1, 3).flatten(2)
