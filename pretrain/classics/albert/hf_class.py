"""Models that transformers' ALBERT can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check_encoder


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    check_encoder(model, "ALBERT", position_offset=0, shared_layers=True, embedding_size=model.embedding_size)
    if model.segments < 1 or model.embedding_size is None:
        raise ConfigError(
            "Hugging Face's ALBERT has segments and a projection of its embeddings: a model without model.segments or "
            "model.embedding_size cannot be exported to it"
        )


ALBERT = HfClass(
    model_type="albert",
    check=check_model,
    heads=kin("Albert", "sequence", "tokens", "spans", "choice"),
)
