"""Models that transformers' ELECTRA can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check_encoder


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    check_encoder(
        model, "ELECTRA", position_offset=0, activation="gelu", binary_head=False, embedding_size=model.embedding_size
    )
    if model.segments < 1 or model.embedding_size == model.hidden:
        raise ConfigError(
            "Hugging Face's ELECTRA has segments, and projects embeddings of another width only: set model.segments=2, "
            "and leave out a model.embedding_size that is model.hidden"
        )


ELECTRA = HfClass(
    model_type="electra",
    check=check_model,
    heads=kin("Electra", "sequence", "tokens", "spans") | {"detector": "ElectraForPreTraining"},
    otherwise={"choice": "its config says how a row is summarized, which is not written"},
)
