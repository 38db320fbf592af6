"""Models that transformers' OpenAI GPT can express. No torch."""

from typing import Any

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check, check_heads

ACTIVATIONS_OF_OPENAI = {"gelu_tanh": "gelu", "relu": "relu"}  # its "gelu" is the tanh form


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    required: dict[str, Any] = {"norm": "post", "positions.name": "learned", "ffn_dropout": 0.0}
    check(model, "OpenAI GPT", ACTIVATIONS_OF_OPENAI, **required)
    if model.ffn_dim != 4 * model.hidden:
        raise ConfigError(
            f"Hugging Face's OpenAI GPT has model.ffn={4 * model.hidden}, four times model.hidden: a model with "
            f"model.ffn={model.ffn} cannot be exported to it"
        )
    check_heads(model, "OpenAI GPT")


OPENAI_GPT = HfClass(
    model_type="openai-gpt",
    family="gpt",
    takes=lambda model: model.norm == "post",
    check=check_model,
    heads=kin("OpenAIGPT", "sequence") | {"choice": "OpenAIGPTDoubleHeadsModel"},
)
