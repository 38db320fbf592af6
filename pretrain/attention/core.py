"""The attention module that megatron-core's layers use: splits nothing, masks nothing, picks the layer's pattern."""

from contextlib import nullcontext
from typing import Any

from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from pretrain.attention.patterns import PATTERNS
from pretrain.config.schema import Attention


class CoreAttention(MegatronModule):
    """softmax(q k^T / sqrt(d)) v under the pattern of this layer. Built from a spec that carries `attention`."""

    def __init__(self, config: TransformerConfig, layer_number: int, attention: Attention, **_: Any) -> None:
        super().__init__(config=config)
        self.pattern = PATTERNS[attention.pattern[(layer_number - 1) % len(attention.pattern)]]
        self.window = attention.window

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **_: Any) -> Tensor:
        """[sequence, batch, heads, width] each -> [sequence, batch, heads * width]. Masks follow from the pattern and
        the lengths (queries are the last of the keys' positions); an explicit one is refused."""
        assert attention_mask is None, "attention masks follow from the pattern"
        dropout = self.config.attention_dropout if self.training else 0.0
        # Heads are split over tensor ranks, so each needs its own dropout; under sequence parallelism the block
        # has switched to the per-rank random state already.
        forked = dropout > 0 and not self.config.sequence_parallel
        with get_cuda_rng_tracker().fork() if forked else nullcontext():
            out = self.pattern(*(x.permute(1, 2, 0, 3) for x in (query, key, value)), self.window, dropout)
        return out.permute(2, 0, 1, 3).flatten(2)
