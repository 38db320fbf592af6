"""Qwen2 and Qwen2.5, dense: Llama's shape with biases of queries, keys and values."""

from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM

from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.hf.llama_kin import (
    HEADS,
    OBJECTIVE,
    activation,
    check_decoder,
    fields,
    layer_types,
    links,
    patterns,
    positions,
    refuse,
    rope,
    section,
    windows,
)
from pretrain.config.model import Model

__all__ = ["CLASS", "HEADS", "MODEL_TYPE", "OBJECTIVE", "hf_config", "links", "model_of", "refuse", "takes"]

CLASS, MODEL_TYPE = Qwen2ForCausalLM, "qwen2"


def takes(model: Model) -> bool:
    return model.has_qkv_bias


def hf_config(model: Model, specials: Specials) -> Qwen2Config:
    """Every field stated. Raises ConfigError for a model that Qwen2 cannot express."""
    check_decoder(model, "Qwen2", patterns=("dense", "banded"), has_qkv_bias=True)
    window = next(iter(windows(model)), None)
    return Qwen2Config(
        **fields(model, specials), hidden_act=activation(model), rope_parameters=rope(model), 
        use_sliding_window=window is not None, sliding_window=window, layer_types=layer_types(model),
        architectures=[CLASS.__name__],
    )  # fmt: skip


def model_of(config: Qwen2Config) -> dict[str, Any]:
    """Our `model` section."""
    own: dict[str, Any] = {
        "positions": positions(config.rope_parameters),
        "attention": patterns(config),
        "qkv_bias": True,
    }
    return section(config) | own
