"""Norms of gradients and weights by layer, of the complete model: the same on every layout.

They are figures of metrics.jsonl, such as {"layer_grad_norm/decoder.layers.0": 0.3, ...}.
"""

import re
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.step_part import StepPart
from pretrain.engine.zero.base import Sharding
from pretrain.engine.zero.gradient_norm import squares_of
from pretrain.model_spec.generator import run_specs
from pretrain.models.placement import Parameter

_LAYER = re.compile(r"(.*\blayers\.\d+)\.")
GRADIENT, WEIGHT = "layer_grad_norm/", "layer_weight_norm/"
"""prefixes of keys of metrics.jsonl; the name of a layer follows"""


def layer_of(name: str) -> str:
    """The layer that a parameter is in; of one in no layer the module that it is in."""
    found = _LAYER.match(name)
    return found[1] if found is not None else name.rpartition(".")[0] or name


class LayerNorms(StepPart):
    """Norms over the trained parameters of a run, of which `parameters` are this rank's."""

    def __init__(
        self, config: RunConfig, parameters: Sequence[Parameter], groups: Groups, device: torch.device
    ) -> None:
        self._every = config.track.norms_every_steps
        counted = (spec.name for spec in run_specs(config) if spec.trained and spec.alias_of is None)
        self._layers = list(dict.fromkeys(map(layer_of, counted)))
        self._by_value = {parameter.value: parameter for parameter in parameters}
        self._groups, self._device = groups, device

    def keeps_gradients(self, step: int) -> bool:
        """See `StepPart`."""
        return step % self._every == 0

    def updated(self, step: int, sharding: Sharding, clipped_by: float) -> dict[str, float]:
        """In steps that are measured the norms: of the gradient before it was clipped, and of the new weights."""
        if not self.keeps_gradients(step):
            return {}
        gradients = self._squares(sharding, ((one.parameter, one.value) for one in sharding.gradients()))
        weights = self._squares(sharding, ((one.parameter, one.main) for one in sharding.owned()))
        squares = torch.stack([gradients / clipped_by**2, weights])
        dist.all_reduce(squares)
        of_gradients, of_weights = squares.sqrt().tolist()
        return {f"{GRADIENT}{layer}": value for layer, value in zip(self._layers, of_gradients, strict=True)} | {
            f"{WEIGHT}{layer}": value for layer, value in zip(self._layers, of_weights, strict=True)
        }

    def _squares(self, sharding: Sharding, ranges: Iterable[tuple[nn.Parameter, Tensor]]) -> Tensor:
        """[layers] float64: sums of squares of what this rank counts. What several ranks hold is counted by one."""
        squares = torch.zeros(len(self._layers), dtype=torch.float64, device=self._device)
        numbers = {layer: number for number, layer in enumerate(self._layers)}
        for value, held in ranges:
            parameter = self._by_value[value]
            copied = sharding.replicated and self._groups.replica_rank_of(parameter.splits_experts) > 0
            if parameter.primary and not copied:
                squares[numbers[layer_of(parameter.name)]] += squares_of([held.detach()], self._device)[0]
        return squares
