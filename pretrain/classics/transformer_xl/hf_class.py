"""Models that transformers' XLNet can express. No torch."""

from typing import Any, get_args

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.hf_class import HfClass, Kind, kin
from pretrain.model_spec.hf_fits import ACTIVATIONS, check, check_heads

SEGMENTS = 2  # vectors: of the same segment, and of another one


def check_model(model: Model) -> None:
    """Raises ConfigError for a model that it cannot express."""
    without: dict[str, Any] = {"positions.shared_biases": False}
    check(
        model, "XLNet", ACTIVATIONS, norm="post", norm_type="layer", bias=True, has_qkv_bias=False,
        projection_bias=False, embedding_norm=False, embedding_scale=False, tie_word_embeddings=True,
        **without,
    )  # fmt: skip
    check_heads(model, "XLNet")
    if not model.is_causal and model.segments != SEGMENTS:
        raise ConfigError(f"Hugging Face's XLNet has segments: set model.segments={SEGMENTS}")


TRANSFORMER_XL = HfClass(
    model_type="xlnet",
    check=check_model,
    otherwise=dict.fromkeys(get_args(Kind), "its class has a dense layer before the last one"),
)
XLNET = HfClass(
    model_type="xlnet",
    check=check_model,
    heads=kin("XLNet", "sequence", "tokens", "choice")
    | {"spans": "XLNetForQuestionAnsweringSimple", "span": "XLNetForQuestionAnswering"},
)
