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
from pretrain.classics.roformer.hf_class import BASE, check_model
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families import bert, roberta
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link, linear


def hf_config(model: Model, specials: Specials) -> RoFormerConfig:
    """Every field stated. Raises ConfigError for a model that RoFormer cannot express."""
    check_model(model)
    return RoFormerConfig(
        **bert.encoder_fields(model, specials),
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
    return bert.encoder_section(config) | {
        "family": "roformer",
        "positions": {"name": "rotary", "interleaved": True, "base": BASE},
        "segments": config.type_vocab_size,
        "embedding_size": None if width == config.hidden_size else width,
    }


def links(model: Model) -> Iterator[Link]:
    yield from bert.embeddings(model, "roformer.embeddings")
    if model.embedding_size:
        yield from linear("embedding.encoder.projection", "roformer.embeddings_project", model)
    yield from bert.layers(model, "roformer.encoder.layer")
    yield from bert.token_head(model, *bert.TOKEN_HEAD)


ROFORMER = HfFamily(
    model_class=RoFormerForMaskedLM,
    model_type="roformer",
    objective="masked",
    head_prefixes=("cls.", "roformer.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    heads=roberta.heads(
        RoFormerForSequenceClassification, RoFormerForTokenClassification, RoFormerForQuestionAnswering
    ),
)
