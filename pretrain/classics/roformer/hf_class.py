"""Models that transformers' RoFormer can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check_encoder

BASE = 10000.0
"""base of its rotary positions, fixed in transformers"""


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    positions = {"name": "rotary", "interleaved": True, "base": BASE, "local_base": None, "scaling": None}
    required = {f"positions.{key}": value for key, value in positions.items()}
    check_encoder(model, "RoFormer", binary_head=False, embedding_size=model.embedding_size, **required)
    if model.segments < 1 or model.embedding_size == model.hidden:
        raise ConfigError(
            "Hugging Face's RoFormer has segments, and projects embeddings of another width only: set "
            "model.segments=2, and leave out a model.embedding_size that is model.hidden"
        )


ROFORMER = HfClass(
    model_type="roformer",
    check=check_model,
    heads=kin("RoFormer", "sequence", "tokens", "spans"),
    otherwise={"choice": "its class reads the last position, without a dense layer"},
)
