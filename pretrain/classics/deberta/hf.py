"""Our DeBERTa as Hugging Face's: v1, and v2 with v3. No class there has the enhanced mask decoder or v3's detector: of
models with one of them, the encoder alone is exported. Models with a task head are exported with it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from transformers import (
    DebertaConfig,
    DebertaForMaskedLM,
    DebertaForQuestionAnswering,
    DebertaForSequenceClassification,
    DebertaForTokenClassification,
    DebertaModel,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DebertaV2ForMultipleChoice,
    DebertaV2ForQuestionAnswering,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
    DebertaV2Model,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.deberta.hf_class import check_v1, check_v2
from pretrain.classics.deberta.key import CONVOLUTION, KERNEL, disentangled
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families import bert
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link, by_head, linear, norm, one, same

_HEAD = "lm_predictions.lm_head"
_CONVOLUTION = "encoder.layers.0.convolution"


def _fields(model: Model, specials: Specials) -> dict[str, Any]:
    """Fields that both configs have."""
    positions = disentangled(model.positions)
    return bert.encoder_fields(model, specials) | {
        "type_vocab_size": model.segments,
        "relative_attention": True,
        "max_relative_positions": positions.max_distance,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "pooler_dropout": 0.0,
        "pooler_hidden_act": bert.encoder_fields(model, specials)["hidden_act"],
        "pooler_hidden_size": model.hidden,
        "legacy": False,
    }


def v1_config(model: Model, specials: Specials) -> DebertaConfig:
    """Every field stated. Raises ConfigError for a model that DeBERTa v1 cannot express."""
    check_v1(model)
    fields = _fields(model, specials)
    return DebertaConfig(**fields, architectures=[DebertaForMaskedLM.__name__])


def v2_config(model: Model, specials: Specials) -> DebertaV2Config:
    """Every field stated. Raises ConfigError for a model that DeBERTa v2 cannot express."""
    check_v2(model)
    positions = disentangled(model.positions)
    more: dict[str, Any] = {
        "position_buckets": positions.num_buckets or -1,
        "share_att_key": positions.shared_projections,
        "norm_rel_ebd": "layer_norm" if positions.norm else "none",
        "conv_kernel_size": 0 if CONVOLUTION.of(model) is None else KERNEL,
        "conv_groups": 1,
        "conv_act": CONVOLUTION.of(model) or "tanh",
    }
    fields = _fields(model, specials)
    return DebertaV2Config(**fields, **more, architectures=[DebertaV2ForMaskedLM.__name__])


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for attention that is not disentangled in both ways, and for parts that are not known here."""
    if not tree.get("relative_attention") or tree.get("position_biased_input", True):
        raise ConfigError(
            "relative_attention must be true and position_biased_input false: other positions are not known here"
        )
    terms = tree.get("pos_att_type") or []
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    if sorted(term.strip() for term in terms) != ["c2p", "p2c"]:
        raise ConfigError(f"pos_att_type {terms} is not known here: it is c2p and p2c")
    known: dict[str, tuple[Any, ...]] = {"talking_head": (False,), "embedding_size": (tree.get("hidden_size"),)}
    if tree.get("conv_kernel_size"):
        known |= {"conv_kernel_size": (KERNEL,), "conv_groups": (1,), "conv_act": ("tanh", "gelu")}
    for key, values in known.items():
        if (configured := tree.get(key) or values[0]) not in values:
            raise ConfigError(f"{key} {configured} is not known here: it is {' or '.join(map(str, values))}")


def _section(config: Any) -> dict[str, Any]:
    section = bert.encoder_section(config)
    furthest = config.max_relative_positions
    positions = {
        "name": "disentangled",
        "max_distance": furthest if furthest > 0 else section["sequence_length"],
    }
    return section | {"segments": config.type_vocab_size, "positions": positions}


def model_of_v1(config: DebertaConfig) -> dict[str, Any]:
    """Our `model` section."""
    return _section(config) | {"family": "deberta"}


def model_of_v2(config: DebertaV2Config) -> dict[str, Any]:
    """Our `model` section."""
    section, buckets = _section(config), getattr(config, "position_buckets", -1)
    norms = [name.strip() for name in getattr(config, "norm_rel_ebd", "none").lower().split("|")]
    if unknown := [name for name in norms if name not in ("none", "layer_norm")]:
        raise ConfigError(f"norm_rel_ebd {unknown[0]} is not known here: it is layer_norm or none")
    section["positions"] |= {
        "num_buckets": buckets if buckets > 0 else None,
        "shared_projections": getattr(config, "share_att_key", False),
        "norm": "layer_norm" in norms,
    }
    convolves = getattr(config, "conv_kernel_size", 0) > 0
    return section | {
        "family": "deberta_v2",
        "convolution": getattr(config, "conv_act", "tanh") if convolves else None,
    }


def links(model: Model) -> Iterator[Link]:
    yield from bert.embeddings(model, "deberta.embeddings")
    yield same("embedding.distances.weight", "deberta.encoder.rel_embeddings.weight")
    if disentangled(model.positions).norm:
        yield from norm("embedding.distances.norm", "deberta.encoder.LayerNorm", model)
    if CONVOLUTION.of(model) is not None:
        yield one(
            f"{_CONVOLUTION}.kernel.weight",
            ("deberta.encoder.conv.conv.weight",),
            lambda x: [x.unflatten(1, (KERNEL, -1)).mT],
            lambda x: x.mT.flatten(1),
        )
        yield same(f"{_CONVOLUTION}.kernel.bias", "deberta.encoder.conv.conv.bias")
        yield from norm(f"{_CONVOLUTION}.norm", "deberta.encoder.conv.LayerNorm", model)
    for layer in range(model.layers):
        ours, theirs = f"encoder.layers.{layer}", f"deberta.encoder.layer.{layer}"
        yield from _attention(f"{ours}.self_attention", f"{theirs}.attention.self", model)
        yield from bert.behind_attention(model, ours, theirs)
    yield from bert.token_head(model, f"{_HEAD}.dense", f"{_HEAD}.LayerNorm", f"{_HEAD}.bias")


def _attention(ours: str, theirs: str, model: Model) -> Iterator[Link]:
    """Queries, keys and values: v1 has them by head, as here; v2 apart."""
    if not model.capabilities.key_bias:
        yield same(f"{ours}.linear_qkv.weight", f"{theirs}.in_proj.weight")
        yield same(f"{ours}.query_bias", f"{theirs}.q_bias")
        yield same(f"{ours}.value_bias", f"{theirs}.v_bias")
        yield same(f"{ours}.position_key.weight", f"{theirs}.pos_proj.weight")
        yield from linear(f"{ours}.position_query", f"{theirs}.pos_q_proj", model)
        return
    yield from by_head(f"{ours}.linear_qkv", [f"{theirs}.{name}_proj" for name in ("query", "key", "value")], model)
    if not disentangled(model.positions).shared_projections:
        yield from linear(f"{ours}.position_key", f"{theirs}.pos_key_proj", model)
        yield from linear(f"{ours}.position_query", f"{theirs}.pos_query_proj", model)


DEBERTA = HfFamily(
    model_class=DebertaForMaskedLM,
    model_type="deberta",
    objective="masked",
    head_prefixes=(
        *("lm_predictions.", "cls.", "mask_predictions.", "pooler."),
        "deberta.embeddings.position_embeddings.",
    ),
    hf_config=v1_config,
    model_of=model_of_v1,
    links=links,
    refuse=refuse,
    padded=False,  # there, padding attends to nothing, so that its own states are others
    encoder=DebertaModel,
    heads=bert.heads(
        DebertaForSequenceClassification,
        DebertaForTokenClassification,
        DebertaForQuestionAnswering,
        pooler="pooler.dense",
    ),
)

DEBERTA_V2 = replace(
    DEBERTA,
    model_class=DebertaV2ForMaskedLM,
    model_type="deberta-v2",
    hf_config=v2_config,
    model_of=model_of_v2,
    encoder=DebertaV2Model,
    heads=bert.heads(
        DebertaV2ForSequenceClassification,
        DebertaV2ForTokenClassification,
        DebertaV2ForQuestionAnswering,
        DebertaV2ForMultipleChoice,
        pooler="pooler.dense",
    ),
)
