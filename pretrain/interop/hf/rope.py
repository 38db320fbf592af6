"""Rotary positions as transformers' `rope_parameters`, and back."""

from typing import Any

from pretrain.attention.rotary import longer_base
from pretrain.config.model import Model
from pretrain.config.positions import Llama3Scaling, NtkScaling, RotaryPositions, YarnScaling
from pretrain.errors import ConfigError


def rope(model: Model) -> dict[str, Any]:
    """`rope_parameters` of dense layers."""
    positions = model.positions
    assert isinstance(positions, RotaryPositions), "the family has no others"
    if positions.scaling is None:
        return {"rope_type": "default", "rope_theta": positions.base}
    scaling = positions.scaling
    if isinstance(scaling, NtkScaling):
        return {"rope_type": "default", "rope_theta": longer_base(positions.base, scaling, model.rotary_dim)}
    rope: dict[str, Any] = {"rope_type": scaling.name, "rope_theta": positions.base, "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        rope["original_max_position_embeddings"] = scaling.original_length
        rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if isinstance(scaling, YarnScaling):
        rope["original_max_position_embeddings"] = scaling.original_length
        rope |= {
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "attention_factor": scaling.attention_factor,
        }
        if model.latent_attention is not None:
            rope |= {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all_dim}
    return rope


def positions(parameters: Any, latent: bool = False) -> dict[str, Any]:
    """Our `model.positions` section for `rope_parameters`, of latent attention or not. Raises ConfigError for a scaling
    that is not known here."""
    _refuse_others(parameters)
    kind = parameters.get("rope_type", "default")
    settings: dict[str, Any] = {"name": "rotary", "base": parameters["rope_theta"]}
    if kind == "default" or (kind == "linear" and parameters["factor"] == 1):
        return settings
    if kind == "linear":
        return settings | {"scaling": {"name": "linear", "factor": parameters["factor"]}}
    if kind == "yarn":
        return settings | {"scaling": _yarn(parameters, latent)}
    if kind != "llama3":
        raise ConfigError(
            f"rotary positions scaled by the rule {kind} are not known here: linear, llama3 and yarn are"
            + (", and ntk, which is dynamic for texts of one length" if kind == "dynamic" else "")
        )
    scaling = {
        "name": kind,
        "factor": parameters["factor"],
        "original_length": parameters["original_max_position_embeddings"],
    }
    return settings | {
        "scaling": scaling
        | {"low_freq_factor": parameters["low_freq_factor"], "high_freq_factor": parameters["high_freq_factor"]}
    }


def _refuse_others(parameters: Any) -> None:
    """Raises ConfigError for a key that no rule here has, and for angles of some of a head's features alone."""
    if (factor := parameters.get("partial_rotary_factor")) not in (None, 1):
        raise ConfigError(f"partial_rotary_factor {factor} is not known here: all features of a head are turned")
    for key, value in parameters.items():
        if key not in _KEYS and value is not None:
            raise ConfigError(f"rope_parameters.{key} is not known here")


_KEYS = (
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor",
    "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
    "partial_rotary_factor", "finetuned",
)  # fmt: skip


def _yarn(parameters: Any, latent: bool) -> dict[str, Any]:
    """Our `scaling`. Raises ConfigError for variants of the rule."""
    magnitudes = ("mscale", "mscale_all_dim")
    for key, usual in (*((key, None) for key in magnitudes if not latent), ("truncate", True)):
        if parameters.get(key, usual) != usual:
            raise ConfigError(f"rope_parameters.{key} is not known here")
    return {
        **{key: parameters.get(key) or None for key in magnitudes if latent},
        "name": "yarn",
        "factor": parameters["factor"],
        "original_length": parameters["original_max_position_embeddings"],
        "beta_fast": parameters.get("beta_fast") or 32.0,
        "beta_slow": parameters.get("beta_slow") or 1.0,
        "attention_factor": parameters.get("attention_factor"),
    }
