"""Models that transformers' CTRL can express. No torch."""

from typing import Any

from pretrain.config.model import Model
from pretrain.model_spec.hf_class import HfClass, kin
from pretrain.model_spec.hf_fits import check, check_heads

EPS = 1e-6
"""epsilon of all norms, fixed in transformers"""


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    required: dict[str, Any] = {"positions.name": "sinusoidal"}
    check(
        model, "CTRL", {"relu": "relu"}, norm="pre", norm_type="layer", norm_eps=EPS, bias=True,
        embedding_norm=False, embedding_scale=True, tie_word_embeddings=True, attention_dropout=0.0, ffn_dropout=0.0,
        **required,
    )  # fmt: skip
    check_heads(model, "CTRL")


CTRL = HfClass(model_type="ctrl", check=check_model, heads=kin("CTRL", "sequence"))
