"""Weights that are read when they are needed: of all layers, a rank holds those of the one that it computes.

An engine is built without values, and memory that nothing was written to takes none, so a model need never fit in
memory as a whole to compute logits of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.engine.base import GlobalPart
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.state import State
from pretrain.models.layers import Layer
from pretrain.models.placement import Parameter
from pretrain.process import heap

Load = Callable[[dict[str, GlobalPart]], None]
"""fills the pieces of a state"""


@contextmanager
def weights_on_demand(
    chunks: Sequence[nn.Module],
    parameters: Sequence[Parameter],
    groups: Groups,
    biases: Mapping[str, Tensor],
    load: Load,
) -> Iterator[None]:
    """Inside, `load` gets the state of each layer of `chunks` before that computes, which then gives it up, and at the
    beginning that of the rest of `parameters` with the `biases` of routers. Outside, no parameter has values."""
    layers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, Layer)]
    by_value = {parameter.value: parameter for parameter in parameters}
    of_layers = {layer: [by_value[value] for value in layer.parameters()] for layer in layers}
    in_layers = {parameter.value for held in of_layers.values() for parameter in held}
    rest = [parameter for parameter in parameters if parameter.value not in in_layers]

    def fill(held: Sequence[Parameter], more: Mapping[str, Tensor]) -> None:
        for parameter in held:
            parameter.value.data = torch.empty(
                parameter.local_shape, dtype=parameter.value.dtype, device=parameter.value.device
            )
        load(State(held, groups, None, more).saved())

    def before(layer: nn.Module, arguments: Any) -> None:
        fill(of_layers[layer], {})  # type: ignore[index]

    def after(layer: nn.Module, arguments: Any, output: Any) -> None:
        _empty(of_layers[layer])  # type: ignore[index]

    _empty(parameters)
    hooks = [layer.register_forward_pre_hook(before) for layer in layers]
    hooks += [layer.register_forward_hook(after, always_call=True) for layer in layers]
    try:
        fill(rest, biases)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        _empty(parameters)


def _empty(parameters: Sequence[Parameter]) -> None:
    for parameter in parameters:
        parameter.value.data = parameter.value.data.new_empty(0)
    heap.trim()
