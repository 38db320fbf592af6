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
from pretrain.checkpoint.hf import bert
from pretrain.checkpoint.hf.bert import encoder_fields, encoder_section, layers
from pretrain.checkpoint.hf.family import HfFamily, HfHead
from pretrain.checkpoint.hf.links import Link, linear, norm, rows, same
from pretrain.classics.electra.hf_class import check_model
from pretrain.config.model import Model


def hf_config(model: Model, specials: Specials) -> ElectraConfig:
    """Every field stated. Raises ConfigError for a model that ELECTRA cannot express."""
    check_model(model)
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
        "sequence": HfHead(
            model_class=ElectraForSequenceClassification,
            classifier="classifier.out_proj",
            pooler="classifier.dense",
        ),
        "tokens": HfHead(model_class=ElectraForTokenClassification, classifier="classifier"),
        "spans": HfHead(model_class=ElectraForQuestionAnswering, classifier="qa_outputs"),
        "detector": HfHead(
            model_class=ElectraForPreTraining,
            classifier="discriminator_predictions.dense_prediction",
            pooler="discriminator_predictions.dense",
        ),
    },
)
