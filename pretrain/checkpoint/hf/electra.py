"""Our ELECTRA as Hugging Face's: a masked language model as its generator, a detector as its discriminator."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf import bert, roberta
from pretrain.checkpoint.hf.bert import check_encoder, encoder_fields, encoder_section, layers
from pretrain.checkpoint.hf.family import HfFamily, HfHead
from pretrain.checkpoint.hf.links import Link, linear, norm, rows, same
from pretrain.config.model import Model
from pretrain.errors import ConfigError


def hf_config(model: Model, specials: Specials) -> ElectraConfig:
    """Every field stated. Raises ConfigError for a model that ELECTRA cannot express."""
    check_encoder(
        model, "ELECTRA", position_offset=0, activation="gelu", binary_head=False, embedding_size=model.embedding_size
    )
    if model.segments < 1 or model.embedding_size == model.hidden:
        raise ConfigError(
            "Hugging Face's ELECTRA has segments, and projects embeddings of another width only: set model.segments=2, "
            "and leave out a model.embedding_size that is model.hidden"
        )
    return ElectraConfig(
        **encoder_fields(model, specials),
        embedding_size=model.embedding_dim,
        classifier_dropout=None,
        architectures=[ElectraForMaskedLM.__name__],
    )


def model_of(config: ElectraConfig) -> dict[str, Any]:
    """Our `model` section."""
    width = config.embedding_size
    return encoder_section(config) | {
        "family": "electra",
        "segments": config.type_vocab_size,
        "embedding_size": None if width == config.hidden_size else width,
    }


def encoder_links(model: Model) -> Iterator[Link]:
    """Everything but the head."""
    yield rows("embedding.word_embeddings.weight", "electra.embeddings.word_embeddings.weight", model)
    yield same("embedding.encoder.position_embeddings.weight", "electra.embeddings.position_embeddings.weight")
    yield same("embedding.encoder.segment_embeddings.weight", "electra.embeddings.token_type_embeddings.weight")
    yield from norm("embedding.encoder.norm", "electra.embeddings.LayerNorm", model)
    if model.embedding_size:
        yield from linear("embedding.encoder.projection", "electra.embeddings_project", model)
    yield from layers(model, "electra.encoder.layer")


def links(model: Model) -> Iterator[Link]:
    yield from encoder_links(model)
    yield from linear("head.transform", "generator_predictions.dense", model)
    yield from norm("head.norm", "generator_predictions.LayerNorm", model)
    yield rows("output_layer.bias", "generator_lm_head.bias", model)


ELECTRA = HfFamily(
    model_class=ElectraForMaskedLM,
    model_type="electra",
    objective="masked",
    head_prefixes=("generator_predictions.", "generator_lm_head.", "discriminator_predictions."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=bert.refuse,
    heads={
        **roberta.heads(
            ElectraForSequenceClassification,
            ElectraForTokenClassification,
            ElectraForQuestionAnswering,
            "its config says how a row is summarized, which is not written",
        ),
        "detector": HfHead(
            model_class=ElectraForPreTraining,
            classifier="discriminator_predictions.dense_prediction",
            pooler="discriminator_predictions.dense",
        ),
    },
)
