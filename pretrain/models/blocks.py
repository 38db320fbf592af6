"""Parts that families share: the layer norm, the transformer layer specs, and megatron-core's config from ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn

from pretrain.attention.core import CoreAttention
from pretrain.config.schema import Model, RunConfig
from pretrain.dropout import Dropout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class LayerNorm(nn.LayerNorm):
    """Layer norm whose parameters say whether their gradients are partial (sequence parallelism)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


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

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dropout = HiddenDropout(config)

    def forward(self, training: bool, fused: bool) -> Callable[..., Tensor]:
        return self.add

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        x, bias = x_with_bias
        return residual + self.dropout(x if bias is None else x + bias)


class ResidualThenNorm(BiasDropoutAdd):
    """Post-norm: norm(residual + dropout(x + bias))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.norm = LayerNorm(config, config.hidden_size, config.layernorm_epsilon)

    def add(self, x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, probability: float) -> Tensor:
        return self.norm(super().add(x_with_bias, residual, probability))


def transformer_config(config: RunConfig) -> TransformerConfig:
    """megatron-core's description of the model and its layout. Weights are left uninitialised: `models/init.py`."""
    model, parallel = config.model, config.parallel
    full = parallel.recompute == "full"
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        kv_channels=model.head_width,
        ffn_hidden_size=model.ffn_width,
        layernorm_epsilon=model.norm_eps,
        hidden_dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        activation_func=partial(F.gelu, approximate="tanh"),
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


def decoder_spec(model: Model, megatron: TransformerConfig, chunk: int | None) -> TransformerBlockSubmodules:
    """The causal self-attention layers of one pipeline chunk, pre- or post-norm, with a final norm if pre-norm."""
    pre = model.norm == "pre"
    residual = ModuleSpec(BiasDropoutAdd if pre else ResidualThenNorm, params={"config": megatron})
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=partial(CoreAttention, attention=model.attention),
            linear_proj=RowParallelLinear,
        ),
    )
    feed_forward = ModuleSpec(
        module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    )
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=LayerNorm if pre else IdentityOp,
            self_attention=attention,
            self_attn_bda=residual,
            pre_mlp_layernorm=LayerNorm if pre else IdentityOp,
            mlp=feed_forward,
            mlp_bda=residual,
        ),
    )
    num_layers = get_num_layers_to_build(megatron, vp_stage=chunk)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=LayerNorm if pre else None)
