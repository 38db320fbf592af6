"""Our ALBERT as Hugging Face's, whose layers are one group of one layer."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.albert.hf_class import check_model
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families import bert
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link, by_head, linear, norm

_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def hf_config(model: Model, specials: Specials) -> AlbertConfig:
    """Every field stated. Raises ConfigError for a model that ALBERT cannot express."""
    check_model(model)
    assert model.embedding_size is not None, "checked"
    return AlbertConfig(
        **bert.encoder_fields(model, specials),
        embedding_size=model.embedding_size,
        num_hidden_groups=1,
        inner_group_num=1,
        classifier_dropout_prob=model.dropout,
        architectures=[hf_class(model).__name__],
    )


def hf_class(model: Model) -> type[AlbertForPreTraining] | type[AlbertForMaskedLM]:
    return AlbertForPreTraining if model.binary_head else AlbertForMaskedLM


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for other positions, and for layers that are several."""
    bert.refuse(tree, most_layers)
    for key in ("num_hidden_groups", "inner_group_num"):
        if tree.get(key, 1) != 1:
            raise ConfigError(f"{key} {tree[key]} is not known here: all layers are one")


def model_of(config: AlbertConfig) -> dict[str, Any]:
    """Our `model` section."""
    return bert.encoder_section(config) | {
        "family": "albert",
        "segments": config.type_vocab_size,
        "embedding_size": config.embedding_size,
        "shared_layers": True,
        "binary_head": "AlbertForPreTraining" in (config.architectures or []),
    }


def links(model: Model) -> Iterator[Link]:
    yield from bert.embeddings(model, "albert.embeddings")
    yield from linear("embedding.encoder.projection", "albert.encoder.embedding_hidden_mapping_in", model)
    mcore, attention = "encoder.layers.0", f"{_LAYER}.attention"
    names = [f"{attention}.{name}" for name in ("query", "key", "value")]
    yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
    yield from linear(f"{mcore}.self_attention.linear_proj", f"{attention}.dense", model)
    yield from norm(f"{mcore}.self_attn_bda.norm", f"{attention}.LayerNorm", model)
    yield from linear(f"{mcore}.mlp.linear_fc1", f"{_LAYER}.ffn", model)
    yield from linear(f"{mcore}.mlp.linear_fc2", f"{_LAYER}.ffn_output", model)
    yield from norm(f"{mcore}.mlp_bda.norm", f"{_LAYER}.full_layer_layer_norm", model)
    yield from bert.token_head(model, "predictions.dense", "predictions.LayerNorm", "predictions.bias")
    if model.binary_head:
        yield from linear("head.pooler", "albert.pooler", model)
        yield from bert.by_answer("head.next_sentence", "sop_classifier.classifier")


ALBERT = HfFamily(
    model_class=AlbertForPreTraining,
    model_type="albert",
    objective="masked",
    head_prefixes=("predictions.", "sop_classifier.", "albert.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    hf_class=hf_class,
    refuse=refuse,
    heads=bert.heads(
        AlbertForSequenceClassification,
        AlbertForTokenClassification,
        AlbertForQuestionAnswering,
        AlbertForMultipleChoice,
        pooler="albert.pooler",
    ),
)
