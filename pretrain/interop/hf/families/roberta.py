"""Our RoBERTa as Hugging Face's, which has one kind of segment, whose embedding is added everywhere."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families import bert
from pretrain.interop.hf.families.bert import encoder_fields, encoder_section, layers, token_head
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, norm, one, rows
from pretrain.model_spec.hf_fits import check_roberta


def hf_config(model: Model, specials: Specials) -> RobertaConfig:
    """Every field stated. Raises ConfigError for a model that RoBERTa cannot express."""
    check_roberta(model)
    check_padding(model, specials, "RoBERTa")
    return RobertaConfig(**encoder_fields(model, specials), architectures=[RobertaForMaskedLM.__name__])


def check_padding(model: Model, specials: Specials, name: str) -> None:
    """Raises ConfigError for positions that `name` would count otherwise."""
    if specials.pad + 1 != model.position_offset:
        raise ConfigError(
            f"Hugging Face's {name} counts positions from the id of padding, {specials.pad}, plus 1, and "
            f"model.position_offset is {model.position_offset}: use a tokenizer whose <pad> is "
            f"{model.position_offset - 1} (tokenizer.type=byte_bpe makes one)"
        )


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for positions that cannot be counted, or are others."""
    bert.refuse(tree, most_layers)
    if tree.get("pad_token_id", 1) is None:
        raise ConfigError("pad_token_id is null, and RoBERTa counts positions from it")


def model_of(config: RobertaConfig) -> dict[str, Any]:
    """Our `model` section."""
    assert config.pad_token_id is not None, "refused"
    offset = config.pad_token_id + 1
    section = encoder_section(config)
    length = section["sequence_length"] - offset
    return section | {
        "family": "roberta",
        "positions": {"name": "learned", "offset": offset},
        "sequence_length": length,
    }


def links(model: Model, prefix: str = "roberta") -> Iterator[Link]:
    """Links of the encoder and its embeddings, whose names in transformers begin with `prefix`."""
    embeddings = f"{prefix}.embeddings"
    yield rows("embedding.word_embeddings.weight", f"{embeddings}.word_embeddings.weight", model)
    yield one(
        "embedding.encoder.position_embeddings.weight",
        (f"{embeddings}.position_embeddings.weight", f"{embeddings}.token_type_embeddings.weight"),
        _without_segment,
        lambda positions, segment: positions + segment,
    )
    yield from norm("embedding.encoder.norm", f"{embeddings}.LayerNorm", model)
    yield from layers(model, f"{prefix}.encoder.layer")
    yield from token_head(model, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias")


def _without_segment(positions: Tensor) -> list[Tensor]:
    return [positions, torch.zeros_like(positions[:1])]


def heads(sequence: Any, tokens: Any, spans: Any, choice: HfHead | None = None) -> dict[str, HfHead]:
    """Heads of these classes, with RoBERTa's names of tensors, and that of choices if there is one."""
    pooler, classifier = "classifier.dense", "classifier.out_proj"
    return {
        "sequence": HfHead(model_class=sequence, classifier=classifier, pooler=pooler),
        "tokens": HfHead(model_class=tokens, classifier="classifier"),
        "spans": HfHead(model_class=spans, classifier="qa_outputs"),
        **({} if choice is None else {"choice": choice}),
    }


def choice_head(model_class: Any) -> HfHead:
    """RoBERTa's class for choices, whose dense layer is the encoder's pooler."""
    return HfHead(model_class=model_class, classifier="classifier", pooler="roberta.pooler.dense")


ROBERTA = HfFamily(
    model_class=RobertaForMaskedLM,
    model_type="roberta",
    objective="masked",
    head_prefixes=("lm_head.", "roberta.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
    heads=heads(
        RobertaForSequenceClassification,
        RobertaForTokenClassification,
        RobertaForQuestionAnswering,
        choice_head(RobertaForMultipleChoice),
    ),
)
