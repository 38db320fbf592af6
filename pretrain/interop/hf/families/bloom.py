"""Decoders with ALiBi as Hugging Face's Bloom: layer norms, also of the embeddings, and biases."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    BloomConfig,
    BloomForCausalLM,
    BloomForQuestionAnswering,
    BloomForSequenceClassification,
    BloomForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, linear, norm, rows
from pretrain.model_spec.hf_fits import check_bloom

_LONGEST = 2048
"""tokens that it was trained on, which its config does not always say"""


def hf_config(model: Model, specials: Specials) -> BloomConfig:
    """Every field stated. Raises ConfigError for a model that Bloom cannot express."""
    check_bloom(model)
    described = BloomConfig(
        vocab_size=model.vocab_size, hidden_size=model.hidden, n_layer=model.layers, n_head=model.heads,
        layer_norm_epsilon=model.norm_eps, initializer_range=model.init_std, hidden_dropout=0.0,
        attention_dropout=model.attention_dropout, apply_residual_connection_post_layernorm=False, slow_but_exact=False,
        pretraining_tp=1, tie_word_embeddings=True, bos_token_id=specials.end, eos_token_id=specials.end,
        pad_token_id=None, architectures=[BloomForCausalLM.__name__],
    )  # fmt: skip
    described.seq_length = model.sequence_length  # which its class no longer knows
    return described


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for a variant of Bloom."""
    if tree.get("apply_residual_connection_post_layernorm"):
        raise ConfigError("apply_residual_connection_post_layernorm is not known here")


def model_of(config: BloomConfig) -> dict[str, Any]:
    """Our `model` section."""
    return {
        "family": "llama",
        "layers": config.n_layer,
        "hidden": config.hidden_size,
        "heads": config.n_head,
        "sequence_length": getattr(config, "seq_length", _LONGEST),
        "vocabulary": config.vocab_size,
        "norm_eps": config.layer_norm_epsilon,
        "embedding_norm": True,
        "positions": "alibi",
        "attention_dropout": config.attention_dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.word_embeddings.weight", model)
    yield from norm("embedding.decoder.norm", "transformer.word_embeddings_layernorm", model)
    for layer in range(model.layers):
        mcore, hf = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        yield from norm(f"{mcore}.input_layernorm", f"{hf}.input_layernorm", model)
        yield from linear(f"{mcore}.self_attention.linear_qkv", f"{hf}.self_attention.query_key_value", model)
        yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.self_attention.dense", model)
        yield from norm(f"{mcore}.pre_mlp_layernorm", f"{hf}.post_attention_layernorm", model)
        yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.mlp.dense_h_to_4h", model)
        yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.mlp.dense_4h_to_h", model)
    yield from norm(f"decoder.layers.{model.layers - 1}.final.norm", "transformer.ln_f", model)


BLOOM = HfFamily(
    model_class=BloomForCausalLM,
    model_type="bloom",
    objective="causal",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    heads={
        "sequence": HfHead(model_class=BloomForSequenceClassification, classifier="score"),
        "tokens": HfHead(model_class=BloomForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=BloomForQuestionAnswering, classifier="qa_outputs"),
    },
    refuse=refuse,
)
