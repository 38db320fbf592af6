"""Mistral: Llama's shape, each layer with a sliding window."""

from typing import Any

from transformers import MistralConfig, MistralForCausalLM

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
    windows,
)
from pretrain.config.model import Model

__all__ = ["CLASS", "HEADS", "MODEL_TYPE", "OBJECTIVE", "hf_config", "links", "model_of", "refuse", "takes"]

CLASS, MODEL_TYPE = MistralForCausalLM, "mistral"


def takes(model: Model) -> bool:
    return bool(windows(model))


def hf_config(model: Model, specials: Specials) -> MistralConfig:
    """Every field stated. Raises ConfigError for a model that Mistral cannot express."""
    check_decoder(model, "Mistral", patterns=("banded",))
    return MistralConfig(
        **fields(model, specials), hidden_act=activation(model), rope_parameters=rope(model),
        sliding_window=windows(model)[0], architectures=[CLASS.__name__],
    )  # fmt: skip


def model_of(config: MistralConfig) -> dict[str, Any]:
    """Our `model` section. Without a window (from version 0.2 on) it is a Llama."""
    found = section(config) | {"positions": positions(config.rope_parameters)}
    if config.sliding_window is None:
        return found
    return found | {"attention": {"pattern": [{"name": "banded", "window": config.sliding_window}]}}
