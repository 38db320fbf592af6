"""megatron-core's attention layers, adapted to this project's: they take `AttentionInputs` as their mask, are
recomputed through a closure, and cross-attention accepts keys and values that were computed before."""

from dataclasses import replace
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.attention import CrossAttention as MegatronCrossAttention
from megatron.core.transformer.attention import SelfAttention as MegatronSelfAttention
from torch import Tensor

from pretrain.attention.cache import Pair
from pretrain.attention.core import AttentionInputs
from pretrain.models.all_heads_norm import AllHeadsRMSNorm
from pretrain.models.megatron_config import MegatronConfig


class RecomputedAttention:
    """megatron-core's selective recomputation, which also keeps `AttentionInputs` (not a tensor) and the gradient of
    the bias (which must be an argument)."""

    core_attention: Any

    def _checkpointed_attention_forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: AttentionInputs, *_: Any,
        attention_bias: Tensor | None = None, **__: Any,
    ) -> Tensor:  # fmt: skip
        def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
            out: Tensor = self.core_attention(q, k, v, attention_mask, attention_bias=bias)
            return out

        out: Tensor = tensor_parallel.checkpoint(attend, False, query, key, value, attention_bias)
        return out


class SelfAttention(RecomputedAttention, MegatronSelfAttention):
    """Self-attention of one part of the stream. Where each head's query and key have norms, each tensor rank has a
    gradient of its own heads, which engines sum as they do those of slices of a sequence. Norms over all heads are not
    megatron-core's, which would sum the gradients of their parts."""

    q_layernorm: Any
    k_layernorm: Any

    def __init__(self, config: MegatronConfig, *args: Any, norms_all_heads: bool, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        for norm in (self.q_layernorm, self.k_layernorm):
            for parameter in () if norm is None else norm.parameters():
                parameter.sequence_parallel = True
        if norms_all_heads:
            self.q_layernorm, self.k_layernorm = (
                AllHeadsRMSNorm(heads, config, self.hidden_size_per_attention_head, config.layernorm_epsilon)
                for heads in (config.num_attention_heads, config.num_query_groups)
            )

    def forward(
        self, hidden_states: Tensor, attention_mask: AttentionInputs, *others: Any, **named: Any
    ) -> tuple[Tensor, Any]:
        """megatron-core's, of which what follows is called without the mask."""
        self._memory_MBH = attention_mask.memory_MBH
        reads = replace(attention_mask, memory_MBH=None, has_memory=self._memory_MBH is not None)  # kept to recompute
        out: tuple[Tensor, Any] = super().forward(hidden_states, reads, *others, **named)
        self._memory_MBH = None
        return out

    def get_query_key_value_tensors(self, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
        """Queries of the hidden states; keys and values of what is before them, too; megatron-core calls this."""
        if self._memory_MBH is None:
            return super().get_query_key_value_tensors(hidden_states, *others, **named)
        before = torch.cat((self._memory_MBH, hidden_states))
        query, key, value = super().get_query_key_value_tensors(before, *others, **named)
        return query[len(self._memory_MBH) :], key, value


class CrossAttention(RecomputedAttention, MegatronCrossAttention):
    """Attention of the decoder's part of the stream to the encoder's."""

    def keys_values(self, memory_SBH: Tensor) -> Pair:
        """Keys and values of the encoder's output, [S, B, heads, width] each, which `forward` takes in its place."""
        key, value = (
            self.linear_kv(memory_SBH)[0].unflatten(-1, (-1, 2 * self.hidden_size_per_attention_head)).chunk(2, -1)
        )
        return key, value

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, key_value_states: Tensor | Pair, **_: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; megatron-core calls this."""
        read = key_value_states
        key, value = self.keys_values(read) if isinstance(read, Tensor) else read
        query = self.linear_q(hidden_states)[0].unflatten(-1, (-1, self.hidden_size_per_attention_head))
        return query, key, value
