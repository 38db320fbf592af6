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
from pretrain.classics.electra.hf_class import check_model
from pretrain.config.model import Model
from pretrain.interop.hf.families import bert, roberta
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, linear


def hf_config(model: Model, specials: Specials) -> ElectraConfig:
    """Every field stated. Raises ConfigError for a model that ELECTRA cannot express."""
    check_model(model)
    return ElectraConfig(
        **bert.encoder_fields(model, specials),
        embedding_size=model.embedding_dim,
        classifier_dropout=None,
        architectures=[ElectraForMaskedLM.__name__],
    )


def model_of(config: ElectraConfig) -> dict[str, Any]:
    """Our `model` section."""
    width = config.embedding_size
    return bert.encoder_section(config) | {
        "family": "electra",
        "segments": config.type_vocab_size,
        "embedding_size": None if width == config.hidden_size else width,
    }


def encoder_links(model: Model) -> Iterator[Link]:
    """Everything but the head."""
    yield from bert.embeddings(model, "electra.embeddings")
    if model.embedding_size:
        yield from linear("embedding.encoder.projection", "electra.embeddings_project", model)
    yield from bert.layers(model, "electra.encoder.layer")


def links(model: Model) -> Iterator[Link]:
    yield from encoder_links(model)
    names = "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"
    yield from bert.token_head(model, *names)


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
        **roberta.heads(ElectraForSequenceClassification, ElectraForTokenClassification, ElectraForQuestionAnswering),
        "detector": HfHead(
            model_class=ElectraForPreTraining,
            classifier="discriminator_predictions.dense_prediction",
            pooler="discriminator_predictions.dense",
        ),
    },
)
