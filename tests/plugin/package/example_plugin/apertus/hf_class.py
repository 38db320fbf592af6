"""What transformers' class of Apertus can express. No torch."""

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass


def check(model: Model) -> None:
    if not model.qk_norm:
        raise ConfigError("Hugging Face's apertus has model.qk_norm=true: this model cannot be exported to it")


APERTUS = HfClass(model_type="apertus", check=check)
