"""A large decoder of transformers, of which one layer is in memory at a time.

The gate compares whole models all the same: transformers' own forward pass of all layers in their order, in a model of
the folder's config, with each layer's weights read by transformers when the layer's turn comes, and given up behind it.
So it sees layers in another order, of another kind, or with another setting, and errors that add up or cancel, as the
gate of a model that is in memory does. It does not see how transformers reads all files at once: here it gets the
tensors of one layer, and those of no layer, under the name of a first layer.
"""

import copy
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.initialization import no_init_weights

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.interop.hf.folder import Folder, values_of
from pretrain.interop.hf.gate import move_by_a_unit
from pretrain.interop.hf.mtp import is_of_mtp
from pretrain.interop.hf.registry import load
from pretrain.model_spec.parameters import num_parameters
from pretrain.process import heap

LARGEST_WHOLE = 2**29
"""parameters up to which both models are compared as wholes: two of fp32 take 4 GiB"""
_OF_LAYER = re.compile(r"((?:.*\.)?layers\.)(\d+)(\..*)")
_FIRST = 0


def goes_by_layer(config: RunConfig) -> bool:
    """Whether an import of `config` compares one layer at a time: a decoder whose layers read nothing of each other's
    weights, and that is too large to be compared as a whole."""
    model = config.model
    plain = model.family == "llama" and model.positions.name == "rotary" and model.task_head is None
    return plain and num_parameters(model, padded=False) > LARGEST_WHOLE


def open_model(folder: Folder, config: RunConfig, report: Callable[[list[str], list[str]], None]) -> Any:
    """transformers' model of a folder, fp32, with its layers empty but for the time in which they compute. `report`
    gets the names of tensors that the folder lacks, and of those that it has beyond the model's, as they are found."""
    family, model = folder.family, config.model
    torch.manual_seed(config.run.seed)
    described = copy.deepcopy(folder.hf_config)
    if model.experts is not None:
        described._experts_implementation = "eager"
    with no_init_weights():  # memory that nothing was written to takes none
        hf_model = family.class_of(model)._from_config(described, attn_implementation="eager", dtype=torch.float32)
    layers = _Layers(folder, config, hf_model, report)
    hf_model.by_layer = layers
    return hf_model.eval()


class _Layers:
    """The layers of `hf_model`, which are filled before they compute."""

    def __init__(
        self, folder: Folder, config: RunConfig, hf_model: Any, report: Callable[[list[str], list[str]], None]
    ) -> None:
        self._folder, self._config, self._report = folder, config, report
        self.draws = 0
        """number of times that all weights were moved by a unit in the last place (`gate`)"""
        self._layers: list[nn.Module] = list(hf_model.base_model.layers)
        self._names: list[list[str]] = [[] for _ in self._layers]
        ends, ignored = [], _ignored(folder, config)
        for name in folder.tensors:
            found = _OF_LAYER.fullmatch(name)
            if found is None:
                ends.append(name)
            elif int(found[2]) < len(self._layers):
                self._names[int(found[2])].append(name)
            elif not (is_of_mtp(name, config.model) or any(pattern.search(name) for pattern in ignored)):
                report([], [name])
        for layer in self._layers:
            _empty(layer)
        self._ends: dict[str, Tensor] = {name: values_of(folder, [name])[name].float() for name in ends}
        first, missing = self._read(_FIRST)
        of_first = first.state_dict()
        self._ends |= {name: of_first[name] for name in missing}  # drawn once
        inside = {id(parameter) for layer in self._layers for parameter in layer.parameters()}
        with_values = dict(first.named_parameters(remove_duplicate=False))
        for name, parameter in hf_model.named_parameters(remove_duplicate=False):
            if id(parameter) not in inside:
                parameter.data = with_values[name].data
        for number, layer in enumerate(self._layers):
            layer.register_forward_pre_hook(lambda module, arguments, number=number: self._fill(number))
            layer.register_forward_hook(lambda module, arguments, output: _empty(module))

    def _fill(self, number: int) -> None:
        one, _ = self._read(number)
        found = one.base_model.layers[0].state_dict()
        targets = self._layers[number].state_dict(keep_vars=True)
        assert found.keys() == targets.keys(), "the layer is of another kind than its config says"
        for name, target in targets.items():
            target.data = found[name]
        for draw in range(self.draws):
            of_layer = torch.Generator().manual_seed(draw * len(self._layers) + number)
            move_by_a_unit(self._layers[number], of_layer)

    def _read(self, number: int) -> tuple[Any, list[str]]:
        """Model of transformers with layer `number` alone, and the names of weights that it drew. Raises ConfigError
        for files that cannot be read."""
        values = dict(self._ends)
        for name, value in values_of(self._folder, self._names[number]).items():
            values[_renumbered(name, _FIRST)] = value
        described = config_of_layer(self._folder.hf_config, number)
        family, model, path = self._folder.family, self._config.model, self._folder.path
        try:
            one, missing, unknown = load(family, model, path, described, values)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())[:200]})") from None
        if missing or unknown:
            self._report(*([_renumbered(name, number) for name in names] for names in (missing, unknown)))
        return one, missing


def config_of_layer(described: Any, number: int) -> Any:
    """The config of transformers for a model of layer `number` alone, of the kind that the layer has there."""
    one = copy.deepcopy(described)
    one.num_hidden_layers = 1
    if getattr(described, "layer_types", None) is not None:
        one.layer_types = [described.layer_types[number]]
    if getattr(described, "first_k_dense_replace", None) is not None:
        one.first_k_dense_replace = int(number < described.first_k_dense_replace)
    if getattr(described, "mlp_only_layers", None) is not None:
        one.mlp_only_layers = [0] if number in described.mlp_only_layers else []
    return one


def _ignored(folder: Folder, config: RunConfig) -> list[re.Pattern[str]]:
    """Names of tensors that transformers passes over silently, such as those of layers behind the last."""
    kind = folder.family.class_of(config.model)
    return [re.compile(pattern) for pattern in kind._keys_to_ignore_on_load_unexpected or ()]


def _renumbered(name: str, number: int) -> str:
    return _OF_LAYER.sub(rf"\g<1>{number}\g<3>", name)


def _empty(layer: nn.Module) -> None:
    for parameter in layer.parameters():
        parameter.data = parameter.data.new_empty(0)
    heap.trim()
