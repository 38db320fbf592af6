"""megatron-core's description of a model and its layout, made from a run's config."""

from dataclasses import dataclass, field

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from pretrain.config.experts import Experts
from pretrain.config.finetune import Lora
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.split import chunk_layers
from pretrain.models.kernels import Kernels

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""`precision` -> what is computed in, but for products in fp8"""


@dataclass
class MegatronConfig(TransformerConfig):
    """megatron-core's, and what it has no word for."""

    ffn_dropout: float = 0.0
    norm_type: str = "layer"
    lora: Lora | None = None
    experts: Experts | None = None
    expert_ffn_hidden_size: int = 0
    expert_ranks: int = 1
    """ranks that share the experts of a layer; of `expert_model_parallel_size` megatron-core requires its own layer"""
    splits_experts: bool = True
    """tensor ranks share the features of each expert; otherwise each computes a slice of the tokens"""
    kernels: Kernels = field(kw_only=True)

    def make_norm(self, width: int | None = None) -> nn.Module:
        """One of the model's norms, over its width unless another is given."""
        return self.kernels.norm[self.norm_type](self, width or self.hidden_size, self.layernorm_epsilon)


def megatron_config(config: RunConfig, kernels: Kernels) -> MegatronConfig:
    """megatron-core's description of the model and its layout. Weights are left uninitialised: `random/init.py`."""
    model, parallel = config.model, config.parallel
    full = parallel.recompute == "full"
    # Of a model without attention, megatron-core reads no more than that tensor ranks divide them.
    without_heads = not model.capabilities.self_attention
    return MegatronConfig(
        num_layers=sum(model.stacks),
        hidden_size=model.hidden,
        num_attention_heads=parallel.tensor if without_heads else model.heads,
        num_query_groups=parallel.tensor if without_heads else model.num_kv_heads,
        kv_channels=model.dim_per_head,
        ffn_hidden_size=model.ffn_dim,
        layernorm_epsilon=model.norm_eps,
        hidden_dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        ffn_dropout=model.ffn_dropout,
        norm_type=model.norm_type,
        lora=model.finetune.lora,
        experts=model.experts,
        expert_ffn_hidden_size=0 if model.experts is None else model.expert_ffn_dim,
        expert_ranks=parallel.expert,
        splits_experts=parallel.expert_tensor != 1,
        kernels=kernels,
        activation_func=kernels.activation[model.activation],
        gated_linear_unit=model.gated,
        add_bias_linear=model.bias,
        add_qkv_bias=model.has_qkv_bias,
        # Sums the gradients of their gains over tensor ranks, which of norms over all heads have their own part.
        qk_layernorm=model.qk_norm and model.qk_norm_span == "head",
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        perform_initialization=False,
        use_cpu_initialization=not kernels.on_gpu,
        calculate_per_token_loss=True,
        params_dtype=DTYPES[config.precision],
        bf16=DTYPES[config.precision] == torch.bfloat16,
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
        batch_p2p_sync=False,  # the whole device would wait after each transfer, for a fault of old versions of torch
        # Frees activations once sent. gloo may still be sending when it does, from memory by then reused.
        deallocate_pipeline_outputs=kernels.on_gpu,
        recompute_granularity=None if parallel.recompute == "none" else parallel.recompute,
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        deterministic_mode=config.run.deterministic,
    )


def _stages(config: RunConfig) -> list[list[str]] | None:
    """The parts of each model chunk, in the order of the model, where these have unequal numbers of layers."""
    parallel = config.parallel
    counts = chunk_layers(config.model, parallel.pipeline, parallel.virtual)
    if parallel.pipeline == 1 or (len(set(counts)) == 1 and not config.model.is_encoder_decoder):
        return None
    chunks = [["decoder"] * count for count in counts]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("loss")
    return chunks
