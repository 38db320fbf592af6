"""The parameters of every model, module by module. `models/` builds modules of the same names; where the two disagree,
the build stops with an error (`models/placement.py`)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from pretrain.config.model import Model
from pretrain.model_spec.embeddings import STACK_NAMES, embeddings
from pretrain.model_spec.heads import head
from pretrain.model_spec.layer import final_norm, layer
from pretrain.model_spec.linears import (
    aliases,
    at,
    norm,
    under,
)
from pretrain.model_spec.mup import with_mup
from pretrain.model_spec.once import once_for_each
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.parts.of_layers import LAYER_PARTS
from pretrain.model_spec.parts.of_models import NETWORK_PARTS
from pretrain.model_spec.slots import filled, specs_apart
from pretrain.model_spec.trained import with_rates, with_trained


def parameter_specs(model: Model, prefix: str = "") -> list[ParameterSpec]:
    """All parameters of `model`. `prefix` is put before their names, for runs that train several models."""
    specs = _parameter_specs(model)
    if not prefix:
        return list(specs)
    return [replace(d, name=prefix + d.name, alias_of=d.alias_of and prefix + d.alias_of) for d in specs]


@once_for_each
def _parameter_specs(model: Model) -> tuple[ParameterSpec, ...]:
    """A run asks eight times before its first step, a plan for every layout."""
    parts = (*NETWORK_PARTS, *specs_apart(model))
    specs = [spec for part in parts for spec in at(0, "", part.front(model))]
    words = next((words for part in parts if (words := part.words(model)) is not None), None)
    specs += at(0, "embedding.", embeddings(model, words))
    for part in parts:
        specs += at(0, "embedding.", part.beside_words(model))
    in_common = partial(is_in_common, model)
    depth = 0
    for stack, layers in enumerate(model.stacks):
        for number in range(layers):
            depth += 1
            name = f"{STACK_NAMES[stack]}.layers.{number}."
            plain = layer(model, bool(stack) and model.is_encoder_decoder, number)
            taken = filled((part.layer(model, stack, number) for part in parts), plain)
            of_layer = at(depth, name, taken)
            if model.shared_layers and number:
                of_layer = aliases(of_layer, name, f"{STACK_NAMES[stack]}.layers.0.")
            elif stack and model.tie_encoder_decoder:
                of_layer = _shared_where(_is_of_both, of_layer, name, f"{STACK_NAMES[0]}.layers.{number}.")
            elif number:
                of_layer = _shared_where(in_common, of_layer, name, f"{STACK_NAMES[stack]}.layers.0.")
            specs += of_layer
            for part in parts:
                specs += at(depth, name, part.beside_layer(model, depth - 1))
        if layers:
            norm_behind = under(final_norm(model, name).removeprefix(f"{STACK_NAMES[stack]}."), norm(model))
            plain = norm_behind if model.norm_first else iter(())
            behind = filled((part.after_layers(model, stack) for part in parts), plain)
            specs += at(depth, f"{STACK_NAMES[stack]}.", behind)
    for part in parts:
        specs += part.copies(model)
    for part in parts:
        specs += at(depth, "", part.before_head(model))
    for part in parts:
        specs += at(depth + 1, "", part.further(model))
    specs += at(depth + 1, "", head(model))
    return tuple(with_mup(model, with_rates(model, with_trained(model, specs))))


def _shared_where(
    shares: Callable[[str], bool], specs: Iterable[ParameterSpec], prefix: str, first: str
) -> Iterator[ParameterSpec]:  # fmt: skip
    """The parameters of the layer named `prefix`; those whose names in it are shared are aliases of the parameters of
    the layer named `first`."""
    for spec in specs:
        own = spec.name.removeprefix(prefix)
        yield replace(spec, alias_of=first + own) if shares(own) else spec


def is_in_common(model: Model, name: str) -> bool:
    """Whether all layers of a stack have the parameter of this name in a layer in common, and others of their own."""
    return any(part.shared(model, name) for part in (*LAYER_PARTS, *specs_apart(model)))


def _is_of_both(name: str) -> bool:
    """Whether the layers of an encoder have it as those of a decoder do."""
    return not name.startswith(("cross_attention.", "cross_attn_bda.", "pre_cross_attn_layernorm."))
