"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): queries, and keys and values, are made of
two short vectors of each position, the latents; positions turn other features, whose key all heads share.

Shapes: S positions (S' those of this rank under sequence parallelism), B rows, N heads on this rank, D width of a head,
R features with a position.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor, nn

from pretrain.attention.core import AttentionInputs, CoreAttention
from pretrain.attention.rotary import frequencies, gain
from pretrain.config.model import Model
from pretrain.config.positions import RotaryPositions
from pretrain.models.attentions import RecomputedAttention
from pretrain.models.feed_forward import linear_of
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.slots import PartModules

NORM_EPS = 1e-6
"""epsilon of the latents' norms, whatever `model.norm_eps` says: DeepSeek's code leaves it at this"""


class LatentModules(PartModules):
    """See `PartModules`."""

    def self_attention(self, model: Model, plain: ModuleSpec) -> ModuleSpec | None:
        """See `PartModules`."""
        return None if model.latent_attention is None else ModuleSpec(LatentSelfAttention, params={"model": model})


class LatentSelfAttention(RecomputedAttention, nn.Module):
    """In the place of megatron-core's self-attention, and called like it. Tensor ranks have some of the heads each, and
    all of the products that make latents, at their own positions where they share sequences."""

    def __init__(
        self, config: MegatronConfig, layer_number: int, pg_collection: ProcessGroupCollection, model: Model, **_: Any
    ) -> None:
        super().__init__()
        assert model.latent_attention is not None
        assert isinstance(model.positions, RotaryPositions), "checked"
        self.config, self.settings, self.positions = config, model.latent_attention, model.positions
        self.tp_group = pg_collection.tp
        shape, heads = model.latent_attention, model.heads
        column = partial(_column, config, self.tp_group)
        if shape.q_lora_rank is None:
            self.linear_q_proj = column(model.hidden, heads * shape.qk_head_dim)
        else:
            self.linear_q_down_proj = _replicated(config, model.hidden, shape.q_lora_rank)
            self.q_layernorm = config.kernels.norm[model.norm_type](config, shape.q_lora_rank, NORM_EPS)
            self.linear_q_up_proj = column(shape.q_lora_rank, heads * shape.qk_head_dim)
        self.linear_kv_down_proj = _replicated(config, model.hidden, shape.kv_lora_rank + shape.qk_rope_head_dim)
        self.kv_layernorm = config.kernels.norm[model.norm_type](config, shape.kv_lora_rank, NORM_EPS)
        self.linear_kv_up_proj = column(shape.kv_lora_rank, heads * (shape.qk_nope_head_dim + shape.v_head_dim))
        self.core_attention = CoreAttention(
            config, layer_number, model, "decoder", config.kernels.attention, pg_collection
        )
        self.dense = self.core_attention.heads.dense
        self.linear_proj = linear_of(config, "projection", "row")(
            heads * shape.v_head_dim,
            model.hidden,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
            is_expert=False,
            tp_group=self.tp_group,
        )
        self.recomputes = config.recompute_granularity == "selective"

    def forward(self, hidden_states: Tensor, attention_mask: AttentionInputs, **_: Any) -> tuple[Tensor, Tensor | None]:
        """[S', B, H] -> the same shape, and no bias."""
        query, key, value = self._query_key_value(hidden_states, attention_mask.positions_BS)
        attend = self._checkpointed_attention_forward if self.recomputes and self.training else self.core_attention
        out: tuple[Tensor, Tensor | None] = self.linear_proj(attend(query, key, value, attention_mask))
        return out

    def _query_key_value(self, x_SBH: Tensor, positions_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[S, B, N, D] each, positions included; values have a width of their own."""
        shape = self.settings
        plain_and_turned = shape.qk_nope_head_dim, shape.qk_rope_head_dim
        if shape.q_lora_rank is None:
            query, _ = self.linear_q_proj(x_SBH)
        else:
            query, _ = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(x_SBH)))
        query, query_turned = query.unflatten(-1, (-1, shape.qk_head_dim)).split(plain_and_turned, dim=-1)
        latent, key_turned_SBR = self.linear_kv_down_proj(x_SBH).split(
            (shape.kv_lora_rank, shape.qk_rope_head_dim), dim=-1
        )
        keys_values, _ = self.linear_kv_up_proj(self.kv_layernorm(latent.contiguous()))
        key, value = keys_values.unflatten(-1, (-1, shape.qk_nope_head_dim + shape.v_head_dim)).split(
            (shape.qk_nope_head_dim, shape.v_head_dim), dim=-1
        )
        turns = frequencies(self.positions, shape.qk_rope_head_dim, self.dense, x_SBH.device)
        larger = gain(self.positions, self.dense)

        def turn(x_SBNR: Tensor) -> Tensor:
            return self.config.kernels.apply_rope(x_SBNR, positions_BS, turns, self.positions.interleaved, larger)

        key_turned = turn(self._on_all_tensor_ranks(key_turned_SBR)[:, :, None]).expand(-1, -1, key.shape[2], -1)
        return torch.cat((query, turn(query_turned)), dim=-1), torch.cat((key, key_turned), dim=-1), value

    def _on_all_tensor_ranks(self, x_SBR: Tensor) -> Tensor:
        """All positions, of which each tensor rank finds a part of the gradient: that of its heads."""
        if self.tp_group.size() == 1:
            return x_SBR
        if self.config.sequence_parallel:
            gathered: Tensor = gather_from_sequence_parallel_region(x_SBR.contiguous(), group=self.tp_group)
            return gathered
        copied: Tensor = copy_to_tensor_model_parallel_region(x_SBR, group=self.tp_group)
        return copied


def _column(config: MegatronConfig, group: Any, inputs: int, outputs: int) -> nn.Module:
    return config.kernels.column_linear(
        inputs,
        outputs,
        config=config,
        init_method=config.init_method,
        bias=False,
        gather_output=False,
        skip_bias_add=False,
        is_expert=False,
        tp_group=group,
    )


def _replicated(config: MegatronConfig, inputs: int, outputs: int) -> nn.Module:
    """A matrix that every tensor rank has, which under sequence parallelism finds the gradient of its own positions."""
    made = config.kernels.linear(inputs, outputs, bias=False)
    made.weight.sequence_parallel = config.sequence_parallel  # type: ignore[union-attr]
    return made
