"""Our Transformer (2017) as Hugging Face's Marian, which is one with sinusoidal positions and norms after sublayers."""

from collections.abc import Iterator
from typing import Any

from transformers import MarianConfig, MarianMTModel

from data_pipeline.tokenizers.specials import Specials
from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.interop.hf.families.bart import fields, layers, section
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link, rows
from pretrain.model_spec.hf_fits import check_marian


def hf_config(model: Model, specials: Specials) -> MarianConfig:
    """Every field stated. Raises ConfigError for a model that Marian cannot express."""
    check_marian(model)
    return MarianConfig(
        **fields(model, specials),
        decoder_vocab_size=model.vocabulary,
        scale_embedding=model.embedding_scale,
        share_encoder_decoder_embeddings=True,
        forced_eos_token_id=None,
        architectures=[MarianMTModel.__name__],
    )


def refuse(tree: dict[str, Any], most_layers: int) -> None:
    """Raises ConfigError for a model whose sources and targets are of two vocabularies."""
    sizes = tree.get("vocab_size"), tree.get("decoder_vocab_size")
    if tree.get("share_encoder_decoder_embeddings") is False or (None not in sizes and sizes[0] != sizes[1]):
        raise ConfigError("source and target have two vocabularies, and here they share one")


def model_of(config: MarianConfig) -> dict[str, Any]:
    """Our `model` section."""
    return section(config) | {"family": "transformer", "positions": "sinusoidal"}


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "model.shared.weight", model)
    yield from layers(model)


MARIAN = HfFamily(
    model_class=MarianMTModel,
    model_type="marian",
    objective="pairs",
    head_prefixes=("final_logits_bias",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    refuse=refuse,
)
