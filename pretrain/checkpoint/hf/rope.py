"""Rotary positions as transformers' `rope_parameters`, and back."""

from typing import Any

from pretrain.attention.rotary import longer_base
from pretrain.config.model import Model
from pretrain.config.positions import Llama3Scaling, NtkScaling, RotaryPositions, YarnScaling
from pretrain.errors import ConfigError


def rope(model: Model) -> dict[str, Any]:
    """Their `rope_parameters`, of dense layers."""
    positions = model.positions
    assert isinstance(positions, RotaryPositions), "the family has no others"
    if positions.scaling is None:
        return {"rope_type": "default", "rope_theta": positions.base}
    scaling = positions.scaling
    if isinstance(scaling, NtkScaling):
        return {"rope_type": "default", "rope_theta": longer_base(positions.base, scaling, model.dim_per_head)}
    found: dict[str, Any] = {"rope_type": scaling.name, "rope_theta": positions.base, "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        found["original_max_position_embeddings"] = scaling.original_length
        found |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if isinstance(scaling, YarnScaling):
        found["original_max_position_embeddings"] = scaling.original_length
        found |= {
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "attention_factor": scaling.attention_factor,
        }
    return found


def positions(found: Any) -> dict[str, Any]:
    """Our `model.positions`, of their `rope_parameters`. Raises ConfigError for a scaling that is not known here."""
    kind = found.get("rope_type", "default")
    ours: dict[str, Any] = {"name": "rotary", "base": found["rope_theta"]}
    if kind == "default" or (kind == "linear" and found["factor"] == 1):
        return ours
    if kind == "linear":
        return ours | {"scaling": {"name": "linear", "factor": found["factor"]}}
    if kind == "yarn":
        return ours | {"scaling": _yarn(found)}
    if kind != "llama3":
        raise ConfigError(
            f"rotary positions scaled by the rule {kind} are not known here: linear, llama3 and yarn are"
            + (", and ntk, which is dynamic for texts of one length" if kind == "dynamic" else "")
        )
    scaling = {"name": kind, "factor": found["factor"], "original_length": found["original_max_position_embeddings"]}
    return ours | {
        "scaling": scaling
        | {"low_freq_factor": found["low_freq_factor"], "high_freq_factor": found["high_freq_factor"]}
    }


def _yarn(found: Any) -> dict[str, Any]:
    """Our `scaling`. Raises ConfigError for variants of the rule."""
    for key, usual in (("mscale", None), ("mscale_all_dim", None), ("truncate", True)):
        if found.get(key, usual) != usual:
            raise ConfigError(f"rope_parameters.{key} is not known here")
    return {
        "name": "yarn",
        "factor": found["factor"],
        "original_length": found["original_max_position_embeddings"],
        "beta_fast": found.get("beta_fast") or 32.0,
        "beta_slow": found.get("beta_slow") or 1.0,
        "attention_factor": found.get("attention_factor"),
    }
