"""Our GPT with norms after sublayers (2018) as Hugging Face's OpenAI GPT."""

from collections.abc import Iterator
from typing import Any

from transformers import (
    OpenAIGPTConfig,
    OpenAIGPTDoubleHeadsModel,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
)

from data_pipeline.tokenizers.specials import Specials
from pretrain.classics.openai_gpt.hf_class import ACTIVATIONS_OF_OPENAI, check_model
from pretrain.config.model import Model
from pretrain.interop.hf.families.gpt2 import conv, conv_by_head, double_heads, shared_fields, shared_settings
from pretrain.interop.hf.family import HfFamily, HfHead
from pretrain.interop.hf.links import Link, norm, rows, same


def hf_config(model: Model, specials: Specials) -> OpenAIGPTConfig:
    """Every field stated. Raises ConfigError for a model that OpenAI GPT cannot express."""
    check_model(model)
    return OpenAIGPTConfig(
        **shared_fields(model, specials),
        afn=ACTIVATIONS_OF_OPENAI[model.activation],
        tie_word_embeddings=model.tie_word_embeddings,
        architectures=[OpenAIGPTLMHeadModel.__name__],
    )


def model_of(config: OpenAIGPTConfig) -> dict[str, Any]:
    """Our `model` section."""
    names = {hf: name for name, hf in ACTIVATIONS_OF_OPENAI.items()} | {"gelu_new": "gelu_tanh"}
    return shared_settings(config) | {
        "norm": "post",
        "activation": names[config.afn],
        "init": {"name": "normal", "scale_residual": False},
    }


def links(model: Model) -> Iterator[Link]:
    yield rows("embedding.word_embeddings.weight", "transformer.tokens_embed.weight", model)
    yield same("embedding.position_embeddings.weight", "transformer.positions_embed.weight")
    for layer in range(model.layers):
        mcore, hf = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        yield from conv_by_head(f"{mcore}.self_attention.linear_qkv", f"{hf}.attn.c_attn", model)
        yield from conv(f"{mcore}.self_attention.linear_proj", f"{hf}.attn.c_proj")
        yield from norm(f"{mcore}.self_attn_bda.norm", f"{hf}.ln_1", model)
        yield from conv(f"{mcore}.mlp.linear_fc1", f"{hf}.mlp.c_fc")
        yield from conv(f"{mcore}.mlp.linear_fc2", f"{hf}.mlp.c_proj")
        yield from norm(f"{mcore}.mlp_bda.norm", f"{hf}.ln_2", model)
    if not model.tie_word_embeddings:
        yield rows("output_layer.weight", "lm_head.weight", model)


OPENAI_GPT = HfFamily(
    model_class=OpenAIGPTLMHeadModel,
    model_type="openai-gpt",
    objective="causal",
    head_prefixes=("lm_head.",),
    hf_config=hf_config,
    model_of=model_of,
    links=links,
    fan_in_fan_out=True,
    heads={
        "choice": double_heads(OpenAIGPTDoubleHeadsModel),
        "sequence": HfHead(model_class=OpenAIGPTForSequenceClassification, classifier="score"),
    },
)
