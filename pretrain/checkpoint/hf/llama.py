"""Llama 1 to 3, SmolLM2 and others of the shape: the plainest of the family."""

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf.llama_kin import (
    HEADS,
    OBJECTIVE,
    activation,
    check_decoder,
    fields,
    links,
    positions,
    refuse,
    rope,
    section,
)
from pretrain.config.model import Model

__all__ = ["CLASS", "HEADS", "MODEL_TYPE", "OBJECTIVE", "hf_config", "links", "model_of", "refuse"]

CLASS, MODEL_TYPE = LlamaForCausalLM, "llama"


def hf_config(model: Model, specials: Specials) -> LlamaConfig:
    """Every field stated. Raises ConfigError for a model that Llama cannot express."""
    check_decoder(model, "Llama")
    return LlamaConfig(
        **fields(model, specials), hidden_act=activation(model), rope_parameters=rope(model), attention_bias=False,
        mlp_bias=False, architectures=[CLASS.__name__],
    )  # fmt: skip


def model_of(config: LlamaConfig) -> dict[str, Any]:
    """Our `model` section."""
    return section(config) | {"positions": positions(config.rope_parameters)}
