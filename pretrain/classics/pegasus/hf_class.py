"""Models that transformers' Pegasus can express. No torch."""

from pretrain.config.model import Model
from pretrain.model_spec.hf_class import HfClass
from pretrain.model_spec.hf_fits import check_encoder_decoder


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    required = {"positions.name": "sinusoidal"}
    check_encoder_decoder(model, "Pegasus", embedding_norm=False, norm="pre", **required)


PEGASUS = HfClass(
    model_type="pegasus",
    family="transformer",
    takes=lambda model: model.norm == "pre",
    check=check_model,
)
