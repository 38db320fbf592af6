"""Whether a model is one that a class of Hugging Face can express."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from pretrain.config.model import Model
from pretrain.errors import ConfigError

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""our names of activations -> those of transformers"""


_USUAL: dict[str, Any] = {
    "embedding_size": None, "shared_layers": False, "tie_encoder_decoder": False, "projection_bias": True,
    "cutoffs": [],
}  # fmt: skip


def check(
    model: Model, name: str, activations: Mapping[str, str], patterns: Sequence[str] = ("dense",),
    grouped: bool = False, **required: Any,
) -> None:  # fmt: skip
    """Raises ConfigError unless Hugging Face's `name` can express the model: its keys, which may be dotted, have the
    `required` values, `activations` has its activation, `patterns` has its attention patterns, and it has as many key
    and value heads as query heads unless `grouped`."""
    for key, value in ({**_USUAL, **required}).items():
        configured = attrgetter(key)(model)
        if configured != value:
            raise ConfigError(
                f"Hugging Face's {name} has model.{key}={value}: a model with model.{key}={configured} cannot be "
                "exported to it"
            )
    used = [pattern.name for pattern in model.attention.pattern]
    if not set(used) <= set(patterns):
        raise ConfigError(
            f"Hugging Face's {name} has {' and '.join(patterns)} attention only: model.attention.pattern={used} "
            "cannot be exported to it"
        )
    if not grouped and model.num_kv_heads != model.heads:
        raise ConfigError(
            f"Hugging Face's {name} has no grouped heads: model.kv_heads={model.kv_heads} cannot be exported"
        )
    if model.activation not in activations:
        raise ConfigError(f"Hugging Face's {name} has no model.activation={model.activation}: it cannot be exported")


def check_heads(model: Model, name: str) -> None:
    if model.dim_per_head * model.heads != model.hidden:
        raise ConfigError(f"Hugging Face's {name} needs heads * head_dim = hidden: this model cannot be exported to it")


def our_activation(hf_name: str) -> str:
    """Our name of an activation of transformers. Raises KeyError for an unknown one."""
    variants = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_python": "gelu"}  # other implementations
    return ({hf: name for name, hf in ACTIVATIONS.items()} | variants)[hf_name]
