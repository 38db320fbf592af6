"""Apertus of Hugging Face: names of tensors, and fields of config.json."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import ApertusConfig, ApertusForCausalLM

from data_pipeline.tokenizers.specials import Specials
from example_plugin.apertus.hf_class import check
from example_plugin.apertus.specs import BETA
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link, by_head, norm, one, rows, same
from pretrain.interop.hf.rope import positions, rope

_EPS = -1e-6


def hf_config(model: Model, specials: Specials) -> ApertusConfig:
    check(model)
    return ApertusConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden,
        intermediate_size=model.ffn_dim,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.dim_per_head,
        hidden_act="xielu",
        max_position_embeddings=model.sequence_length,
        initializer_range=model.init_std,
        rms_norm_eps=model.norm_eps,
        attention_dropout=model.attention_dropout,
        tie_word_embeddings=model.tie_word_embeddings,
        rope_parameters=rope(model),
        bos_token_id=specials.end,
        eos_token_id=specials.end,
        pad_token_id=None,
        architectures=[ApertusForCausalLM.__name__],
    )


def model_of(config: Any) -> dict[str, Any]:
    if config.hidden_act != "xielu" or config.attention_bias:
        raise ConfigError(f"hidden_act={config.hidden_act}, attention_bias={config.attention_bias} is not known here")
    return {
        "family": "apertus",
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "ffn": config.intermediate_size,
        "sequence_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "norm_type": "rms",
        "norm_eps": config.rms_norm_eps,
        "bias": False,
        "qk_norm": True,
        "positions": positions(config.rope_parameters),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_dropout": config.attention_dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "model.embed_tokens.weight", model)
    yield from norm(f"decoder.layers.{model.layers - 1}.final.norm", "model.norm", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)
    for layer in range(model.layers):
        ours, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        yield from norm(f"{ours}.input_layernorm", f"{theirs}.attention_layernorm", model)
        names = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
        yield from by_head(f"{ours}.self_attention.linear_qkv", names, model)
        for name in "qk":
            yield from norm(f"{ours}.self_attention.{name}_layernorm", f"{theirs}.self_attn.{name}_norm", model)
        yield same(f"{ours}.self_attention.linear_proj.weight", f"{theirs}.self_attn.o_proj.weight")
        yield from norm(f"{ours}.pre_mlp_layernorm", f"{theirs}.feedforward_layernorm", model)
        yield same(f"{ours}.mlp.linear_fc1.weight", f"{theirs}.mlp.up_proj.weight")
        yield same(f"{ours}.mlp.linear_fc2.weight", f"{theirs}.mlp.down_proj.weight")
        act = f"{theirs}.mlp.act_fn"
        yield same(f"{ours}.mlp.alpha_n", f"{act}.alpha_n")
        yield one(f"{ours}.mlp.alpha_p", (f"{act}.alpha_p", f"{act}.beta", f"{act}.eps"), _with_constants, _alone)


def _with_constants(alpha_p: torch.Tensor) -> Sequence[torch.Tensor]:
    """Folders have the two constants of each layer as tensors."""
    return [alpha_p, alpha_p.new_full((), BETA), alpha_p.new_full((), _EPS)]


def _alone(alpha_p: torch.Tensor, beta: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    return alpha_p


APERTUS = HfFamily(
    model_class=ApertusForCausalLM,
    model_type="apertus",
    objective="causal",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
)
