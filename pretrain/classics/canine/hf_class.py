"""Models that transformers' CANINE can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import ACTIVATIONS, check, check_heads


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    check(model, "CANINE", ACTIVATIONS, ffn_dropout=0.0)
    check_heads(model, "CANINE")
    if model.segments < 1:
        raise ConfigError("Hugging Face's CANINE has segments: set model.segments=16")


CANINE = HfClass(
    model_type="canine",
    check=check_model,
    heads=kin("Canine", "tokens"),
    otherwise={"sequence": "its class has layers behind the one that answers, which a run does not train"},
    encoder_alone=True,
)
