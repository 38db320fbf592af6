"""A model with maximal update parametrization as one without, for classes that lack its multipliers: each lies in
weights beside it, so the function stays.

| Multiplier | Lies in |
|---|---|
| of embeddings | the tables of words, positions and segments |
| of logits | the head's own weight; of a head that is the embedding, the norm whose output it alone reads |
| of attention scores | the queries' rows and biases |
"""

from collections.abc import Callable

import numpy as np

from pretrain.config.model import Model
from pretrain.config.positions import RelativePositions
from pretrain.errors import ConfigError
from pretrain.model_spec.embeddings import STACK_NAMES, WORD_EMBEDDINGS
from pretrain.model_spec.modules import parameter_specs

Fold = Callable[[np.ndarray], np.ndarray]


def without_mup(model: Model) -> tuple[Model, dict[str, Fold]]:
    """The model that computes the same without `mup`, and what becomes of the weights that take its multipliers up.
    Raises ConfigError for a model that has no weight to take one of them up."""
    if model.mup is None:
        return model, {}
    plain = model.model_copy(update={"mup": None})
    names = [spec.name for spec in parameter_specs(model)]
    words = model.input_multiplier
    if model.embedding_scale:
        words *= (model.base_width / model.hidden) ** 0.5
    if model.positions.name == "sinusoidal" and model.input_multiplier != 1:
        raise ConfigError(
            f"model.mup.input_multiplier={model.input_multiplier:g} multiplies sinusoidal positions too, which are no "
            "weights: the checkpoint cannot be exported"
        )
    factors = {WORD_EMBEDDINGS: words}
    tables = ("position_embeddings.weight", "segment_embeddings.weight")
    factors |= {name: model.input_multiplier for name in names if name.endswith(tables)}
    if model.has_vocabulary_logits:
        output = model.output_multiplier
        if model.tie_word_embeddings:
            if isinstance(model.positions, RelativePositions) and model.family == "t5":
                output *= (model.hidden / model.base_width) ** 0.5  # its classes divide by the root of the width
            factors |= _in_last_norm(model, names, output / words)
        else:
            factors["output_layer.weight"] = output
    folds: dict[str, Fold] = {name: _times(factor) for name, factor in factors.items() if factor != 1}
    centered = model.norm_type == "rms_zero_centered"
    for name in (name for name in folds if centered and "norm" in name):
        folds[name] = _centered(factors[name])
    return plain, folds | _in_queries(model, plain, names)


def _in_last_norm(model: Model, names: list[str], factor: float) -> dict[str, float]:
    """The norm whose output only the head reads."""
    if factor == 1:
        return {}
    stack = max(stack for stack, count in enumerate(model.stacks) if count)
    last = f"{STACK_NAMES[stack]}.layers.{model.stacks[stack] - 1}."
    if model.capabilities.masked_head:
        place = "head.norm."
    elif model.norm_first:
        place = "decoder.final_layernorm." if model.capabilities.first_names else f"{last}final.norm."
    else:
        place = f"{last}mlp_bda.norm."
    shares = model.layers_share_by if not (model.capabilities.masked_head or model.norm_first) else None
    if shares is not None or model.task_head is not None:
        reader = shares or "model.task_head"
        raise ConfigError(
            f"model.mup multiplies the logits, and with {reader} others read what its tied head reads: the checkpoint "
            "cannot be exported"
        )
    return {name: factor for name in names if name.startswith(place)}


def _in_queries(model: Model, plain: Model, names: list[str]) -> dict[str, Fold]:
    factor = model.score_scale / plain.score_scale
    if factor == 1:
        return {}
    queries = model.heads // model.num_kv_heads * model.dim_per_head
    group = queries + 2 * model.dim_per_head

    def fused(value: np.ndarray) -> np.ndarray:
        by_group = value.reshape(model.num_kv_heads, group, *value.shape[1:]).copy()
        by_group[:, :queries] *= np.float32(factor)
        return by_group.reshape(value.shape)

    of_self = {name: fused for name in names if ".self_attention.linear_qkv." in name}
    return of_self | {name: _times(factor) for name in names if ".cross_attention.linear_q." in name}


def _times(factor: float) -> Fold:
    return lambda value: value * np.float32(factor)


def _centered(factor: float) -> Fold:
    """The change to a norm that is stored as its weight minus 1."""
    return lambda value: (value + np.float32(1)) * np.float32(factor) - np.float32(1)
