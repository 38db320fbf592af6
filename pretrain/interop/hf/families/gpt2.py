"""Our GPT as Hugging Face's GPT-2."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2DoubleHeadsModel,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, norm, one, rows, same, transposed
from pretrain.model_spec.hf_fits import ACTIVATIONS, check_gpt2


def hf_config(model: Model, specials: Specials) -> GPT2Config:
    """Every field stated: class defaults are not relied on. Raises ConfigError for a model GPT-2 cannot express."""
    check_gpt2(model)
    return GPT2Config(
        **shared_fields(model, specials),
        n_inner=model.ffn_dim,
        activation_function=ACTIVATIONS[model.activation],
        tie_word_embeddings=model.tie_word_embeddings,
        architectures=[GPT2LMHeadModel.__name__],
    )


def shared_fields(model: Model, specials: Specials) -> dict[str, Any]:
    """Fields of config.json with the same names in GPT-2 and OpenAI GPT."""
    return {
        "vocab_size": model.vocab_size,
        "n_positions": model.sequence_length,
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
        "layer_norm_epsilon": model.norm_eps,
        "initializer_range": model.init_std,
        "bos_token_id": specials.end,
        "eos_token_id": specials.end,
    }


def model_of(config: GPT2Config) -> dict[str, Any]:
    """Our `model` section."""
    return shared_settings(config) | {
        "ffn": config.n_inner or 4 * config.n_embd,
        "activation": our_activation(config.activation_function),
    }


def shared_settings(config: Any) -> dict[str, Any]:
    """Settings of our `model` section from the fields that OpenAI GPT calls the same, of a config of either."""
    return {
        "family": "gpt",
        "layers": config.n_layer,
        "hidden": config.n_embd,
        "heads": config.n_head,
        "sequence_length": config.n_positions,
        "vocabulary": config.vocab_size,
        "norm_eps": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tie_word_embeddings,
        "dropout": config.resid_pdrop,
        "attention_dropout": config.attn_pdrop,
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.wte.weight", model)
    yield same("embedding.position_embeddings.weight", "transformer.wpe.weight")
    for layer in range(model.layers):
        mcore, hf = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        yield from norm(f"{mcore}.input_layernorm", f"{hf}.ln_1", model)
        yield from conv_by_head(f"{mcore}.self_attention.linear_qkv", f"{hf}.attn.c_attn", model)
        yield from conv(f"{mcore}.self_attention.linear_proj", f"{hf}.attn.c_proj")
        yield from norm(f"{mcore}.pre_mlp_layernorm", f"{hf}.ln_2", model)
        yield from conv(f"{mcore}.mlp.linear_fc1", f"{hf}.mlp.c_fc")
        yield from conv(f"{mcore}.mlp.linear_fc2", f"{hf}.mlp.c_proj")
    yield from norm("decoder.final_layernorm", "transformer.ln_f", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)


def conv(mcore: str, hf: str) -> Iterator[Link]:
    yield transposed(f"{mcore}.weight", f"{hf}.weight")
    yield same(f"{mcore}.bias", f"{hf}.bias")


def conv_by_head(mcore: str, hf: str, model: Model) -> Iterator[Link]:
    """[heads * (q, k, v), ...] here, (q of all heads, k, v) there."""

    def out(fused: Tensor) -> list[Tensor]:
        split = fused.view(model.heads, 3, model.dim_per_head, *fused.shape[1:])
        apart = split.transpose(0, 1).flatten(0, 2)
        return [apart.T if apart.dim() > 1 else apart]

    def back(apart: Tensor) -> Tensor:
        straight = apart.T if apart.dim() > 1 else apart
        split = straight.reshape(3, model.heads, model.dim_per_head, *straight.shape[1:])
        return torch.transpose(split, 0, 1).flatten(0, 2)

    for leaf in ("weight", "bias"):
        yield one(f"{mcore}.{leaf}", (f"{hf}.{leaf}",), out, back)


def double_heads(model_class: Any) -> HfHead:
    """The class with a head for choices beside the language-model head."""
    return HfHead(
        model_class=model_class,
        classifier="multiple_choice_head.summary",
        double=True,
        fields={
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "summary_proj_to_labels": True,
            "summary_activation": None,
        },
    )


GPT2 = HfFamily(
    model_class=GPT2LMHeadModel,
    model_type="gpt2",
    objective="causal",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    fan_in_fan_out=True,
    heads={
        "sequence": HfHead(model_class=GPT2ForSequenceClassification, classifier="score"),
        "choice": double_heads(GPT2DoubleHeadsModel),
        "tokens": HfHead(model_class=GPT2ForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=GPT2ForQuestionAnswering, classifier="qa_outputs"),
    },
)
