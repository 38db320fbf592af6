"""A BERT without segments and pooler as Hugging Face's DistilBERT."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForQuestionAnswering,
    DistilBertForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families.bert import embeddings, token_head
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, by_head, linear, norm
from pretrain.model_spec.hf_fits import ACTIVATIONS, EPS_OF_DISTILBERT, check_distilbert


def hf_config(model: Model, specials: Specials) -> DistilBertConfig:
    """Every field stated. Raises ConfigError for a model that DistilBERT cannot express."""
    check_distilbert(model)
    fields: dict[str, Any] = {
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.sequence_length,
        "sinusoidal_pos_embds": False,
        "n_layers": model.layers,
        "n_heads": model.heads,
        "dim": model.hidden,
        "hidden_dim": model.ffn_dim,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation": ACTIVATIONS[model.activation],
        "initializer_range": model.init_std,
        "pad_token_id": specials.pad,
        "bos_token_id": specials.cls,
        "eos_token_id": specials.sep,
        "tie_word_embeddings": True,
    }
    return DistilBertConfig(**fields, architectures=[DistilBertForMaskedLM.__name__])


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for embeddings that are not tied, which the links would read as tied."""
    if not tree.get("tie_word_embeddings", True):
        raise ConfigError("tie_word_embeddings is false, and a BERT's output projection is its token embedding")


def model_of(config: DistilBertConfig) -> dict[str, Any]:
    """Our `model` section. Sinusoidal positions are in the table of positions, as any other values."""
    return {
        "family": "bert",
        "layers": config.n_layers,
        "hidden": config.dim,
        "heads": config.n_heads,
        "ffn": config.hidden_dim,
        "sequence_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "segments": 0,
        "norm": "post",
        "norm_eps": EPS_OF_DISTILBERT,
        "activation": our_activation(config.activation),
        "embedding_norm": True,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield from embeddings(model, "distilbert.embeddings")
    for layer in range(model.layers):
        mcore, hf = f"encoder.layers.{layer}", f"distilbert.transformer.layer.{layer}"
        names = [f"{hf}.attention.{name}_lin" for name in ("q", "k", "v")]
        yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
        yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.attention.out_lin", model)
        yield from norm(f"{mcore}.self_attn_bda.norm", f"{hf}.sa_layer_norm", model)
        yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.ffn.lin1", model)
        yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.ffn.lin2", model)
        yield from norm(f"{mcore}.mlp_bda.norm", f"{hf}.output_layer_norm", model)
    yield from token_head(model, "vocab_transform", "vocab_layer_norm", "vocab_projector.bias")


DISTILBERT = HfFamily(
    model_class=DistilBertForMaskedLM,
    model_type="distilbert",
    objective="masked",
    head_prefixes=("vocab_",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    heads={
        "tokens": HfHead(model_class=DistilBertForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=DistilBertForQuestionAnswering, classifier="qa_outputs"),
    },
)
