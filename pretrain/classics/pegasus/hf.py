"""Our Transformer with norms before its sublayers, as Hugging Face's Pegasus."""

from collections.abc import Iterator
from typing import Any

from transformers import PegasusConfig, PegasusForConditionalGeneration

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.pegasus.hf_class import check_model
from pretrain.config.model import Model
from pretrain.interop.hf.families.bart import fields, layers, section
from pretrain.interop.hf.family import HfFamily
from pretrain.interop.hf.links import Link, norm, rows


def hf_config(model: Model, specials: Specials) -> PegasusConfig:
    """Every field stated. Raises ConfigError for a model that Pegasus cannot express."""
    check_model(model)
    return PegasusConfig(
        **fields(model, specials),
        scale_embedding=model.embedding_scale,
        forced_eos_token_id=None,
        architectures=[PegasusForConditionalGeneration.__name__],
    )


def model_of(config: PegasusConfig) -> dict[str, Any]:
    """Our `model` section."""
    return section(config) | {"family": "transformer", "positions": "sinusoidal", "norm": "pre"}


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "model.shared.weight", model)
    yield from layers(model)
    for stack, count in zip(("encoder", "decoder"), model.stacks, strict=True):
        yield from norm(f"{stack}.layers.{count - 1}.final.norm", f"model.{stack}.layer_norm", model)


PEGASUS = HfFamily(
    model_class=PegasusForConditionalGeneration,
    model_type="pegasus",
    objective="gap_sentences",
    head_prefixes=("final_logits_bias",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
)
