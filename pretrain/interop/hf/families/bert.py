"""Our BERT as Hugging Face's."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.fits import our_activation
from pretrain.interop.hf.links import Link, by_head, linear, norm, one, rows, same
from pretrain.model_spec.hf_fits import ACTIVATIONS, check_bert

TOKEN_HEAD = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
"""transformers' names of BERT's masked language-model head"""


def hf_config(model: Model, specials: Specials) -> BertConfig:
    """Every field stated. Raises ConfigError for a model that BERT cannot express."""
    check_bert(model)
    return BertConfig(**encoder_fields(model, specials), architectures=[hf_class(model).__name__])


def hf_class(model: Model) -> type[BertForPreTraining] | type[BertForMaskedLM]:
    return BertForPreTraining if model.binary_head else BertForMaskedLM


def encoder_fields(model: Model, specials: Specials) -> dict[str, Any]:
    """Fields that BERT's and RoBERTa's configs share."""
    return {
        "vocab_size": model.vocabulary,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.ffn_dim,
        "hidden_act": ACTIVATIONS[model.activation],
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "max_position_embeddings": model.sequence_length + model.position_offset,
        "type_vocab_size": max(1, model.segments),
        "initializer_range": model.init_std,
        "layer_norm_eps": model.norm_eps,
        "pad_token_id": specials.pad,
        "bos_token_id": specials.cls,
        "eos_token_id": specials.sep,
        "tie_word_embeddings": True,
    }


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for positions that transformers 5 takes for absolute ones."""
    if (configured := tree.get("position_embedding_type", "absolute")) != "absolute":
        raise ConfigError(f"position_embedding_type {configured} is not known here: positions are absolute")


def model_of(config: BertConfig) -> dict[str, Any]:
    """Our `model` section."""
    names = config.architectures or []
    return encoder_section(config) | {
        "family": "bert",
        "segments": config.type_vocab_size,
        "binary_head": "BertForPreTraining" in names,
    }


def encoder_section(config: Any) -> dict[str, Any]:
    return {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "ffn": config.intermediate_size,
        "sequence_length": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "norm": "post",
        "norm_eps": config.layer_norm_eps,
        "activation": our_activation(config.hidden_act),
        "embedding_norm": True,
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield from embeddings(model, "bert.embeddings")
    yield from layers(model, "bert.encoder.layer")
    yield from token_head(model, *TOKEN_HEAD)
    if model.binary_head:
        yield from linear("head.pooler", "bert.pooler.dense", model)
        yield from by_answer("head.next_sentence", "cls.seq_relationship")


def embeddings(model: Model, prefix: str) -> Iterator[Link]:
    """Links of those embeddings that the model has, and of their norm."""
    yield rows("embedding.word_embeddings.weight", f"{prefix}.word_embeddings.weight", model)
    if model.positions.name == "learned":
        yield same("embedding.encoder.position_embeddings.weight", f"{prefix}.position_embeddings.weight")
    if model.segments:
        yield same("embedding.encoder.segment_embeddings.weight", f"{prefix}.token_type_embeddings.weight")
    yield from norm("embedding.encoder.norm", f"{prefix}.LayerNorm", model)


def token_head(model: Model, dense: str, head_norm: str, bias: str) -> Iterator[Link]:
    """Links of the masked language-model head, by transformers' names of its layers and of its bias."""
    yield from linear("head.transform", dense, model)
    yield from norm("head.norm", head_norm, model)
    yield rows("output_layer.bias", bias, model)


def by_answer(mcore: str, hf: str) -> Iterator[Link]:
    """Link of a head with two answers: transformers has "follows" first."""
    for leaf in ("weight", "bias"):
        yield one(f"{mcore}.{leaf}", (f"{hf}.{leaf}",), lambda x: [x.flip(0)], lambda x: x.flip(0))


def layers(model: Model, prefix: str) -> Iterator[Link]:
    for number in range(model.layers):
        yield from layer(model, f"encoder.layers.{number}", f"{prefix}.{number}")


def layer(model: Model, mcore: str, hf: str) -> Iterator[Link]:
    """Links of a layer."""
    names = [f"{hf}.attention.self.{name}" for name in ("query", "key", "value")]
    yield from by_head(f"{mcore}.self_attention.linear_qkv", names, model)
    yield from behind_attention(model, mcore, hf)


def behind_attention(model: Model, mcore: str, hf: str) -> Iterator[Link]:
    """Links of a layer but for its queries, keys and values."""
    yield from linear(f"{mcore}.self_attention.linear_proj", f"{hf}.attention.output.dense", model)
    yield from norm(f"{mcore}.self_attn_bda.norm", f"{hf}.attention.output.LayerNorm", model)
    yield from linear(f"{mcore}.mlp.linear_fc1", f"{hf}.intermediate.dense", model)
    yield from linear(f"{mcore}.mlp.linear_fc2", f"{hf}.output.dense", model)
    yield from norm(f"{mcore}.mlp_bda.norm", f"{hf}.output.LayerNorm", model)


def heads(sequence: Any, tokens: Any, spans: Any, choice: Any = None, *, pooler: str) -> dict[str, HfHead]:
    """Heads of these classes, of which those of sequences and of choices read the layer named `pooler`."""
    pooled = {"sequence": sequence} if choice is None else {"sequence": sequence, "choice": choice}
    return {
        **{kind: HfHead(model_class=one, classifier="classifier", pooler=pooler) for kind, one in pooled.items()},
        "tokens": HfHead(model_class=tokens, classifier="classifier"),
        "spans": HfHead(model_class=spans, classifier="qa_outputs"),
    }


BERT = HfFamily(
    model_class=BertForPreTraining,
    model_type="bert",
    objective="masked",
    head_prefixes=("cls.", "bert.pooler.", "pooler."),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    hf_class=hf_class,
    refuse=refuse,
    heads=heads(
        BertForSequenceClassification,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForMultipleChoice,
        pooler="bert.pooler.dense",
    ),
)
