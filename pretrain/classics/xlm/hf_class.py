"""Models that transformers' XLM can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check_encoder

FFN = 4  # times the hidden size, fixed in transformers


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    check_encoder(model, "XLM", position_offset=0, ffn_dim=FFN * model.hidden)
    if model.activation not in ("gelu", "relu"):
        raise ConfigError(f"Hugging Face's XLM has no model.activation={model.activation}: it cannot be exported")


XLM = HfClass(
    model_type="xlm",
    check=check_model,
    heads=kin("XLM", "sequence", "tokens") | {"spans": "XLMForQuestionAnsweringSimple"},
    otherwise={"choice": "its class has a second linear layer"},
)
