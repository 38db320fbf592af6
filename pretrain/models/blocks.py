"""Parts that families share: the layer norm, the transformer layer specs, and megatron-core's config from ours."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import (
    CrossAttention,
    CrossAttentionSubmodules,
    SelfAttention,
    SelfAttentionSubmodules,
)
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn

from pretrain.attention.core import CoreAttention, Kind
from pretrain.config.model import Model
from pretrain.config.run_config import RunConfig
from pretrain.plan.split import split_layers
from pretrain.random.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "gated_gelu": partial(F.gelu, approximate="tanh"),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class LayerNorm(nn.LayerNorm):
    """Layer norm whose parameters say whether their gradients are partial (sequence parallelism)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class RMSNorm(nn.RMSNorm):
    """Likewise, without mean and bias."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def norm_of(model: Model) -> type[LayerNorm] | type[RMSNorm]:
    return {"layer": LayerNorm, "rms": RMSNorm}[model.norm_type]


class HiddenDropout(Dropout):
    """Dropout of hidden states [S, B, H], whose positions context ranks share, and under sequence parallelism tensor
    ranks each such slice."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.hidden_dropout, ("context", "tensor") if config.sequence_parallel else ("context",))

    def mask(self, shape: torch.Size, device: torch.device) -> Tensor:
        positions, rows, width = shape
        return super().mask(torch.Size([rows, positions, width]), device).transpose(0, 1)


class BiasDropoutAdd(nn.Module):
    """Pre-norm: residual + dropout(x + bias), called as megatron-core calls its own."""

    def __init__(self, config: TransformerConfig, model: Model) -> None:
        super().__init__()
        self.dropout = HiddenDropout(config)

    def forward(self, training: bool, fused: bool) -> Callable[..., Tensor]:
        return self.add

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        x, bias = x_with_bias
        return residual + self.dropout(x if bias is None else x + bias)


class ResidualThenNorm(BiasDropoutAdd):
    """Post-norm: norm(residual + dropout(x + bias))."""

    def __init__(self, config: TransformerConfig, model: Model) -> None:
        super().__init__(config, model)
        self.norm = norm_of(model)(config, config.hidden_size, config.layernorm_epsilon)

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        return self.norm(super().add(x_with_bias, residual, probability))


class SelfAttentionWithBias(SelfAttention):
    """megatron-core's, whose selective recomputation would lose the gradient of the bias: it must be an argument."""

    def _checkpointed_attention_forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *_: Any,
        attention_bias: Tensor | None = None, **__: Any,
    ) -> Tensor:  # fmt: skip
        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
            return self.core_attention(q, k, v, mask, attention_bias=bias)

        return tensor_parallel.checkpoint(attend, False, query, key, value, attention_mask, attention_bias)


class PlainLayer(TransformerLayer):
    """megatron-core's, but that it turns gradients on around residuals, also where they are off: scoring would keep the
    activations of all layers whose residuals have a norm."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.bias_dropout_add_exec_handler = nullcontext


class FeedForward(MLP):
    """megatron-core's, with dropout between its matrices. If gated, gate and value of each feature lie side by side, so
    that tensor ranks share features and not halves."""

    def __init__(self, config: "Config") -> None:
        linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        super().__init__(config, linears, ffn_hidden_size=config.ffn_hidden_size)
        self.dropout = Dropout(config.ffn_dropout, ("context",), ("tensor",))

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor | None]:
        x, bias = self.linear_fc1(hidden_states)
        if bias is not None:
            x = x + bias
        if self.config.gated_linear_unit:
            gate, x = x.unflatten(-1, (-1, 2)).unbind(-1)
            x = self.activation_func(gate) * x
        else:
            x = self.activation_func(x)
        if self.dropout.active:
            x = self.dropout(x.transpose(0, 1)).transpose(0, 1)
        return self.linear_fc2(x)


@dataclass
class Config(TransformerConfig):
    """megatron-core's, and what it has no word for."""

    ffn_dropout: float = 0.0


def transformer_config(config: RunConfig) -> Config:
    """megatron-core's description of the model and its layout. Weights are left uninitialised: `models/init.py`."""
    model, parallel = config.model, config.parallel
    full = parallel.recompute == "full"
    return Config(
        num_layers=sum(model.stacks),
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        kv_channels=model.head_width,
        ffn_hidden_size=model.ffn_width,
        layernorm_epsilon=model.norm_eps,
        hidden_dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        ffn_dropout=model.ffn_dropout,
        activation_func=ACTIVATIONS[model.activation],
        gated_linear_unit=model.gated,
        add_bias_linear=model.bias,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        perform_initialization=False,
        use_cpu_initialization=not torch.cuda.is_available(),
        calculate_per_token_loss=True,
        params_dtype=torch.float32,
        bf16=config.precision == "bf16",
        fp16=config.precision == "fp16",
        pipeline_dtype=DTYPES[config.precision],
        tensor_model_parallel_size=parallel.tensor,
        sequence_parallel=parallel.sequence,
        context_parallel_size=parallel.context,
        pipeline_model_parallel_size=parallel.pipeline,
        pipeline_model_parallel_layout=_stages(config),
        virtual_pipeline_model_parallel_size=parallel.virtual if parallel.virtual > 1 else None,
        # Interleaving over two stages sends twice between the same two ranks: batched sends would cross.
        overlap_p2p_comm=parallel.virtual > 1,
        batch_p2p_comm=parallel.virtual == 1,
        # Frees activations once sent. gloo may still be sending when it does, from memory by then reused.
        deallocate_pipeline_outputs=torch.cuda.is_available(),
        recompute_granularity=None if parallel.recompute == "none" else parallel.recompute,
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        deterministic_mode=config.run.deterministic,
    )


def _stages(config: RunConfig) -> list[list[str]] | None:
    """The parts of each model chunk, in the order of the model, where these have unequal numbers of layers."""
    parallel = config.parallel
    if parallel.pipeline == 1 or not config.model.is_encoder_decoder:
        return None
    chunks = [["decoder"] * count for count in split_layers(config.model, parallel.pipeline * parallel.virtual)]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("loss")
    return chunks


def decoder_spec(model: Model, megatron: TransformerConfig, chunk: int | None) -> TransformerBlockSubmodules:
    """The causal self-attention layers of one pipeline chunk, pre- or post-norm, with a final norm if pre-norm."""
    layer = ModuleSpec(PlainLayer, submodules=layer_parts(model, megatron, "causal", cross=False))
    num_layers = get_num_layers_to_build(megatron, vp_stage=chunk)
    final_norm = LayerNorm if model.norm == "pre" else None
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=final_norm)


def layer_parts(model: Model, megatron: TransformerConfig, kind: Kind, cross: bool) -> TransformerLayerSubmodules:
    """Self-attention of `kind`, attention to an encoder if `cross`, feed-forward; each pre- or post-norm."""
    pre = model.norm == "pre"
    norm = norm_of(model) if pre else IdentityOp
    residual = ModuleSpec(BiasDropoutAdd if pre else ResidualThenNorm, params={"config": megatron, "model": model})
    self_attention = ModuleSpec(
        module=SelfAttentionWithBias,
        params={"attn_mask_type": AttnMaskType.causal},  # not read: `kind` says it
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=partial(CoreAttention, model=model, kind=kind),
            linear_proj=RowParallelLinear,
        ),
    )
    parts = TransformerLayerSubmodules(
        input_layernorm=norm,
        self_attention=self_attention,
        self_attn_bda=residual,
        pre_mlp_layernorm=norm,
        mlp=FeedForward,
        mlp_bda=residual,
    )
    if cross:
        parts.pre_cross_attn_layernorm = norm
        parts.cross_attention = ModuleSpec(
            module=CrossAttention,
            submodules=CrossAttentionSubmodules(
                linear_q=ColumnParallelLinear,
                linear_kv=ColumnParallelLinear,
                core_attention=partial(CoreAttention, model=model, kind="full"),
                linear_proj=RowParallelLinear,
            ),
        )
        parts.cross_attn_bda = ModuleSpec(residual.module, params={"model": model})  # which is given the config too
    return parts
