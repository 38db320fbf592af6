"""Qwen3, dense: Llama's shape with a norm of each head's query and key."""

from typing import Any

from transformers import Qwen3Config, Qwen3ForCausalLM

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

CLASS, MODEL_TYPE = Qwen3ForCausalLM, "qwen3"


def takes(model: Model) -> bool:
    return model.qk_norm


def hf_config(model: Model, specials: Specials) -> Qwen3Config:
    """Every field stated. Raises ConfigError for a model that Qwen3 cannot express."""
    check_decoder(model, "Qwen3", patterns=("dense", "banded"), qk_norm=True)
    window = next(iter(windows(model)), None)
    return Qwen3Config(
        **fields(model, specials), hidden_act=activation(model), rope_parameters=rope(model), attention_bias=False, 
        use_sliding_window=window is not None, sliding_window=window, layer_types=layer_types(model),
        architectures=[CLASS.__name__],
    )  # fmt: skip


def model_of(config: Qwen3Config) -> dict[str, Any]:
    """Our `model` section."""
    own: dict[str, Any] = {
        "positions": positions(config.rope_parameters),
        "attention": patterns(config),
        "qk_norm": True,
    }
    return section(config) | own
