"""Parameters of a teacher that a smaller model begins with (`distillation.start_layers`)."""

import re
from collections.abc import Sequence

from pretrain.config.model import Model
from pretrain.errors import ConfigError
from pretrain.model_spec.heads import TEACHER_PROJECTION
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.router_biases import router_bias_shapes

_LAYER = re.compile(r"((?:en|de)coder\.layers)\.(\d+)\.(?!final\.)")
_FINAL = re.compile(r"((?:en|de)coder\.layers)\.\d+\.(?=final\.)")


def teacher_names(model: Model, teacher: Model, layers: Sequence[int]) -> dict[str, str]:
    """Name of each parameter of `model` -> that of the `teacher`'s parameter which it begins with: layer i of the model
    with layer `layers[i]`, all else with its namesake. Raises ConfigError where the teacher has none of that shape."""
    shapes, own = _shapes(teacher), _shapes(model)
    names = {}
    for own_name, shape in own.items():
        if own_name.startswith(TEACHER_PROJECTION):
            continue
        last = _FINAL.sub(rf"\1.{teacher.layers - 1}.", own_name)
        name = _LAYER.sub(lambda match: f"{match[1]}.{layers[int(match[2])]}.", last)
        if shapes.get(name) != shape:
            there = f"has {name} of shape {shapes[name]}" if name in shapes else f"has no {name}"
            raise ConfigError(
                f"distillation.start_layers begins with the teacher's weights, which {there}, and this model has "
                f"{own_name} of shape {shape}: give the model the teacher's sizes, or leave it out"
            )
        names[own_name] = name
    return names


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of parameters, and of what lies beside them in checkpoints."""
    return {spec.name: spec.shape for spec in parameter_specs(model) if spec.alias_of is None} | router_bias_shapes(
        model
    )
