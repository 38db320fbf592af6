"""Stacks of layers that a step computes, with what their parts have."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pretrain.config.model import Model
from pretrain.model_spec.gradients import PRODUCTS
from pretrain.model_spec.row_flops import mean_keys
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.parts.registry import works_of
from pretrain.plan.estimate.shapes import each_product
from pretrain.plan.estimate.workload import LayerStack


def layer_stacks(
    model: Model, layers: Mapping[str, Array], embeds: Array, predicts: Array
) -> tuple[LayerStack, ...]:  # fmt: skip
    """Stacks that `model` has: those in front of its own, then its encoder, its decoder, and what is behind. `layers`:
    layers by field of `LayerStack` of each of `alike_layers` on each stage of each layout, [n, 2, ..., s]; `embeds` and
    `predicts` [n, s]: 1 on the first and on the last stage."""
    stacks = [_front(front, layers, embeds) for front in models_in_front(model)]
    behind = layers_behind(model)
    groups, lora = alike_layers(model), model.finetune.lora
    ranks = [lora.rank if lora is not None and product in lora.targets else 0.0 for product in PRODUCTS]
    for which, numbers in enumerate(groups):
        if not numbers:
            continue
        is_decoder = which > 0 or model.is_causal
        continues = is_decoder and numbers.stop < model.layers
        on_stages = {name: values[:, which] for name, values in layers.items()}
        if model.last_layer_uses and not is_decoder:
            again = (model.last_layer_uses - 1) * predicts
            on_stages = {name: _with_last_layers(values, again) for name, values in on_stages.items()}
        stacks.append(
            _stack(
                model,
                numbers,
                is_decoder,
                on_stages,
                lora_ranks=ranks,
                encoder_length=model.sequence_length if is_decoder and model.is_encoder_decoder else 0,
                travels=numbers.start == 0,
                ends_in_norm=not continues and not behind,
            )
        )
    if behind:
        on_last = len(behind) * predicts
        stacks.append(_stack(model, behind, True, _all_trained(on_last), travels=len(behind)))
    return tuple(stacks)


def models_in_front(model: Model) -> list[Model]:
    """Models of one stack each, in front of the layers of `model`."""
    return [front for part in works_of(model) if (front := part.front(model)) is not None]


def layers_behind(model: Model) -> list[int]:
    """Numbers of the layers behind the last one."""
    return [number for part in works_of(model) for number in part.behind(model)]


def alike_layers(model: Model) -> tuple[range, range]:
    """Numbers of the layers of an encoder and of a decoder; or of a decoder's layers without a part and of those with
    it."""
    first = max(part.first_layer(model) for part in works_of(model))
    if model.is_causal:
        return range(first), range(first, model.layers)
    encoder_layers, decoder_layers = model.stacks
    return range(encoder_layers), range(decoder_layers)


def _front(front: Model, layers: Mapping[str, Array], embeds: Array) -> LayerStack:
    """The one stack of a model in front, whose states stay on the first stage."""
    on_stages = {name: np.zeros_like(values) for name, values in layers.items()}
    for values in on_stages.values():  # all of it is trained
        of_stage = values[:, 0].swapaxes(0, -2) if values.ndim > 3 else values[:, 0]
        of_stage[...] = front.stacks[0] * embeds
    (stack,) = layer_stacks(front, on_stages, embeds, np.zeros_like(embeds))
    return replace(stack, travels=np.zeros_like(stack.travels))


def _stack(
    model: Model,
    numbers: Sequence[int],
    is_decoder: bool,
    on_stages: Mapping[str, Array],
    *,
    travels: float,
    lora_ranks: Sequence[float] = (0.0,) * len(PRODUCTS),
    encoder_length: float = 0.0,
    ends_in_norm: float = 1.0,
) -> LayerStack:
    """Layers of these numbers, which have the same parts."""
    count, length = len(on_stages["layers"]), model.label_length if is_decoder else model.layer_length
    patterns = [model.attention.layer_pattern(layer) for layer in numbers]
    parts = tuple(work for part in works_of(model) if (work := part.layer(model, numbers[0])) is not None)
    ffn = next((part.ffn for part in parts if part.ffn is not None), model.ffn_dim)
    sizes = {
        "ffn": ffn,
        "length": length,
        "keys": np.mean([mean_keys(model, pattern, length, is_decoder) for pattern in patterns]).item(),
        "computed_keys": np.mean([pattern.computed_keys(length, is_decoder) for pattern in patterns]).item(),
        "encoder_length": encoder_length,
        "travels": travels,
        "ends_in_norm": ends_in_norm,
    }
    of_each = {name: np.full(count, float(value)) for name, value in sizes.items()}
    return LayerStack(**on_stages, lora_ranks=np.tile(lora_ranks, (count, 1)), parts=parts, **of_each)


def _all_trained(layers: Array) -> dict[str, Array]:
    """`layers` [n, s] by field of `LayerStack`."""
    products = each_product(layers)
    return {"layers": layers, "backward_layers": layers, "input_gradients": products, "weight_gradients": products}


def _with_last_layers(values: Array, again: Array) -> Array:
    """Layers [n, ..., s] with `again` [n, s] uses more of the last one, which is like those beside it."""
    more = again if values.ndim == 2 else again[:, None]
    added: Array = values + more * (values > 0)
    return added
