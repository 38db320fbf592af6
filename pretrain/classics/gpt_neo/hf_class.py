"""Models that transformers' GPT-Neo can express. No torch."""

from typing import Any

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import ACTIVATIONS, check, check_heads, windows


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    required: dict[str, Any] = {"norm": "pre", "positions.name": "learned", "ffn_dropout": 0.0}
    check(model, "GPT-Neo", ACTIVATIONS, patterns=("dense", "banded"), **required)
    check_heads(model, "GPT-Neo")
    if len(windows(model)) > 1:
        raise ConfigError(
            f"Hugging Face's GPT-Neo has one width of local attention: model.attention.pattern with windows of "
            f"{windows(model)} cannot be exported to it"
        )


GPT_NEO = HfClass(
    model_type="gpt_neo",
    family="gpt",
    takes=lambda model: bool(windows(model)) and model.norm != "post",  # of which OpenAI GPT is
    check=check_model,
    heads=kin("GPTNeo", "sequence", "tokens", "spans"),
)
