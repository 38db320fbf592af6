"""Our RoFormer as Hugging Face's: a BERT whose queries and keys are turned, in pairs of neighbours, by a table of sines
that it computes and does not train."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf.bert import encoder_fields, encoder_section, layers
from pretrain.checkpoint.hf.family import HfFamily, HfHead
from pretrain.checkpoint.hf.links import Link, linear, norm, rows, same
from pretrain.classics.roformer.hf_class import BASE, check_model
from pretrain.config.model import Model
from pretrain.errors import ConfigError


def hf_config(model: Model, specials: Specials) -> RoFormerConfig:
    """Every field stated. Raises ConfigError for a model that RoFormer cannot express."""
    check_model(model)
    return RoFormerConfig(
        **encoder_fields(model, specials),
        embedding_size=model.embedding_dim,
        rotary_value=False,
        architectures=[RoFormerForMaskedLM.__name__],
    )


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for values that are turned as well."""
    if tree.get("rotary_value"):
        raise ConfigError("rotary_value is not known here: positions turn queries and keys only")


def model_of(config: RoFormerConfig) -> dict[str, Any]:
    """Our `model` section."""
    width = config.embedding_size or config.hidden_size
    return encoder_section(config) | {
        "family": "roformer",
        "positions": {"name": "rotary", "interleaved": True, "base": BASE},
        "segments": config.type_vocab_size,
        "embedding_size": None if width == config.hidden_size else width,
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "roformer.embeddings.word_embeddings.weight", model)
    yield same("embedding.encoder.segment_embeddings.weight", "roformer.embeddings.token_type_embeddings.weight")
    yield from norm("embedding.encoder.norm", "roformer.embeddings.LayerNorm", model)
    if model.embedding_size:
        yield from linear("embedding.encoder.projection", "roformer.embeddings_project", model)
    yield from layers(model, "roformer.encoder.layer")
    yield from linear("head.transform", "cls.predictions.transform.dense", model)
    yield from norm("head.norm", "cls.predictions.transform.LayerNorm", model)
    yield rows("output_layer.bias", "cls.predictions.bias", model)


ROFORMER = HfFamily(
    model_class=RoFormerForMaskedLM,
    model_type="roformer",
    objective="masked",
    head_prefixes=("cls.", "roformer.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    heads={
        "sequence": HfHead(
            model_class=RoFormerForSequenceClassification, classifier="classifier.out_proj", pooler="classifier.dense"
        ),
        "tokens": HfHead(model_class=RoFormerForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=RoFormerForQuestionAnswering, classifier="qa_outputs"),
    },
)
