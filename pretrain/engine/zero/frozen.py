"""Parameters that a run does not train: no gradient, no optimizer state, and in every checkpoint the values that the
run started with, to the bit."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.groups import Groups
from pretrain.engine.zero.base import ParameterRange
from pretrain.models.placement import Parameter


class FrozenParameters:
    """The frozen ones of a rank's `parameters`. Each data rank saves and loads a range of them. Where the model
    computes in half precision, that range is kept in fp32 in host memory, because the weights in use are rounded."""

    def __init__(self, parameters: Sequence[Parameter], groups: Groups) -> None:
        frozen = [parameter for parameter in parameters if not parameter.spec.trained]
        self.values = [parameter.value for parameter in frozen]
        self._groups = {parameter.value: groups.replicas_of(parameter.splits_experts) for parameter in frozen}
        self._rounded = {
            value: torch.zeros(count, dtype=torch.float32)
            for value in self.values
            if _dtype(value) != torch.float32
            for _, count in [self._range(value)]
        }

    def ranges(self) -> Iterator[ParameterRange]:
        """This rank's ranges, in fp32: live views."""
        for value in self.values:
            start, count = self._range(value)
            if count > 0:
                yield ParameterRange(value, start, self._rounded.get(value, self._in_use(value)))

    def in_use(self) -> Iterator[ParameterRange]:
        """This rank's ranges of the weights that the model computes with."""
        for value in self.values:
            start, count = self._range(value)
            if count > 0:
                yield ParameterRange(value, start, self._in_use(value))

    @torch.no_grad()
    def publish(self) -> None:
        """Copies `ranges`, which were written to, into the weights in use, on every data rank. Collective."""
        for value in self.values:
            in_use = self._in_use(value)
            if value in self._rounded:
                in_use.copy_(self._rounded[value])
            group = self._groups[value]
            if not hasattr(value, "ds_tensor") and group.size() > 1:
                size = self._size(value)
                own = torch.zeros(size, dtype=value.dtype, device=value.device)
                own[: len(in_use)] = in_use
                every = torch.empty(size * group.size(), dtype=value.dtype, device=value.device)
                dist.all_gather_into_tensor(every, own, group=group)
                value.detach().view(-1).copy_(every[: value.numel()])

    def _range(self, value: nn.Parameter) -> tuple[int, int]:
        """Start and length of this rank's range of a parameter's local values; it may be empty."""
        size, total = self._size(value), int(getattr(value, "ds_numel", value.numel()))
        start = min(self._groups[value].rank() * size, total)
        return start, min(size, total - start)

    def _size(self, value: Any) -> int:
        """Values in each rank's range but the last ones."""
        if hasattr(value, "ds_tensor"):
            return int(value.partition_numel())
        return -(-int(value.numel()) // self._groups[value].size())

    def _in_use(self, value: Any) -> Tensor:
        """The weights in use of this rank's range, flat."""
        start, count = self._range(value)
        if hasattr(value, "ds_tensor"):  # ZeRO stage 3 holds no more
            partition: Tensor = value.ds_tensor.view(-1)[:count]
            return partition
        weights: Tensor = value.detach().view(-1)[start : start + count]
        return weights


def _dtype(value: Any) -> torch.dtype:
    dtype: torch.dtype = getattr(value, "ds_tensor", value).dtype
    return dtype
