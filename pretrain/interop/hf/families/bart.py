"""Our BART as Hugging Face's."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, by_head, linear, norm, one, rows
from pretrain.model_spec.hf_fits import ACTIVATIONS, OFFSET_OF_BART, check_bart


def hf_config(model: Model, specials: Specials) -> BartConfig:
    """Every field stated. Raises ConfigError for a model that BART cannot express."""
    check_bart(model)
    return BartConfig(
        **fields(model, specials),
        scale_embedding=model.embedding_scale,
        forced_eos_token_id=None,
        architectures=[BartForConditionalGeneration.__name__],
    )


def fields(model: Model, specials: Specials) -> dict[str, Any]:
    """Fields that the configs of BART and its kin share."""
    encoder_layers, decoder_layers = model.stacks
    return {
        "vocab_size": model.vocabulary,
        "d_model": model.hidden,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": model.heads,
        "decoder_attention_heads": model.heads,
        "encoder_ffn_dim": model.ffn_dim,
        "decoder_ffn_dim": model.ffn_dim,
        "max_position_embeddings": max(model.sequence_length, model.label_length),
        "activation_function": ACTIVATIONS[model.activation],
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "init_std": model.init_std,
        "pad_token_id": specials.pad,
        "bos_token_id": specials.cls if specials.cls >= 0 else None,
        "eos_token_id": specials.end,
        "decoder_start_token_id": specials.start,
        "tie_word_embeddings": True,
    }


def model_of(config: BartConfig) -> dict[str, Any]:
    """Our `model` section."""
    return section(config) | {
        "family": "bart",
        "positions": {"name": "learned", "offset": OFFSET_OF_BART},
        "embedding_norm": True,
    }


def section(config: Any) -> dict[str, Any]:
    return {
        "layers": config.decoder_layers,
        "encoder_layers": config.encoder_layers,
        "hidden": config.d_model,
        "heads": config.encoder_attention_heads,
        "ffn": config.encoder_ffn_dim,
        "sequence_length": config.max_position_embeddings,
        "target_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "norm": "post",
        "activation": our_activation(config.activation_function),
        "embedding_scale": config.scale_embedding,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "model.shared.weight", model)
    longest = max(model.sequence_length, model.label_length)
    for stack, length in (("encoder", model.sequence_length), ("decoder", model.label_length)):
        mcore, hf = f"embedding.{stack}.position_embeddings.weight", f"model.{stack}.embed_positions.weight"
        yield _positions(mcore, hf, length + OFFSET_OF_BART, longest - length)
        yield from norm(f"embedding.{stack}.norm", f"model.{stack}.layernorm_embedding", model)
    yield from layers(model)


def _positions(mcore: str, hf: str, used: int, unused: int) -> Link:
    """Position embeddings of a stack: [used, hidden] here, and [used + unused, hidden] in transformers, whose tables
    have the same length in both stacks."""

    def out(x: Tensor) -> list[Tensor]:
        return [torch.cat((x, x.new_zeros(unused, x.shape[1])))]

    return one(mcore, (hf,), out, lambda x: x[:used])


def layers(model: Model) -> Iterator[Link]:
    """Links of the layers of encoder and decoder, whose norms have the same names in transformers before and after
    sublayers."""
    before = model.norm == "pre"
    own = "input_layernorm" if before else "self_attn_bda.norm"
    crossing = "pre_cross_attn_layernorm" if before else "cross_attn_bda.norm"
    feeding = "pre_mlp_layernorm" if before else "mlp_bda.norm"
    for stack, count in zip(("encoder", "decoder"), model.stacks, strict=True):
        for layer in range(count):
            mcore, hf = f"{stack}.layers.{layer}", f"model.{stack}.layers.{layer}"
            names = [f"{hf}.self_attn.{name}_proj" for name in "qkv"]
            yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
            yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.self_attn.out_proj", model)
            yield from norm(f"{mcore}.{own}", f"{hf}.self_attn_layer_norm", model)
            if stack == "decoder":
                cross = f"{hf}.encoder_attn"
                yield from linear(f"{mcore}.cross_attention.linear_q", f"{cross}.q_proj", model)
                names = [f"{cross}.{name}_proj" for name in "kv"]
                yield from by_head(f"{mcore}.cross_attention.linear_kv", names, model)
                yield from linear(f"{mcore}.cross_attention.linear_proj", f"{cross}.out_proj", model)
                yield from norm(f"{mcore}.{crossing}", f"{cross}_layer_norm", model)
            yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.fc1", model)
            yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.fc2", model)
            yield from norm(f"{mcore}.{feeding}", f"{hf}.final_layer_norm", model)


BART = HfFamily(
    model_class=BartForConditionalGeneration,
    model_type="bart",
    objective="denoising",
    head_prefixes=("final_logits_bias",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    heads={
        "sequence": HfHead(
            model_class=BartForSequenceClassification,
            classifier="classification_head.out_proj",
            pooler="classification_head.dense",
        ),
        "spans": HfHead(model_class=BartForQuestionAnswering, classifier="qa_outputs"),
    },
)
