"""Models that transformers' DeBERTa can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check_encoder

_POSITIONS_OF_V1 = {"num_buckets": None, "shared_projections": False, "norm": False}


def check_v1(model: Model) -> None:
    """Raises ConfigError for a model that DeBERTa v1 cannot express."""
    _check(model, "DeBERTa")
    for key, value in _POSITIONS_OF_V1.items():
        if (configured := getattr(model.positions, key)) != value:
            raise ConfigError(
                f"Hugging Face's DeBERTa has model.positions.{key}={value}: {configured} is for model.family=deberta_v2"
            )


def check_v2(model: Model) -> None:
    """Raises ConfigError for a model that DeBERTa v2 cannot express."""
    _check(model, "DeBERTa v2")


def _check(model: Model, name: str) -> None:
    check_encoder(model, name, **{"positions.name": "disentangled"})
    if model.last_layer_uses:
        raise ConfigError(
            f"Hugging Face's {name} predicts tokens without an enhanced mask decoder: a model with "
            f"model.mask_decoder_layers={model.last_layer_uses} cannot be exported to it before it is fine-tuned; "
            "its encoder can (export --encoder)"
        )


DEBERTA = HfClass(
    model_type="deberta",
    check=check_v1,
    heads=kin("Deberta", "sequence", "tokens", "spans"),
    otherwise={"choice": "transformers has no such class of DeBERTa v1"},
    encoder_alone=True,
)
DEBERTA_V2 = HfClass(
    model_type="deberta-v2",
    check=check_v2,
    heads=kin("DebertaV2", "sequence", "tokens", "spans", "choice"),
    encoder_alone=True,
)
