"""Sums over full parameters whose values are sharded over several ranks."""

from collections.abc import Callable, Sequence
from itertools import islice
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.engine.groups import Groups, StageRank
from pretrain.models.placement import Parameter

_BLOCK = 1 << 20  # values squared at a time in fp64: bounds that to 8 MiB


class ReplicaGroups:
    """This rank's parameters, and the groups of ranks that hold the rest of each. Rows that only pad the vocabulary are
    not counted: their number depends on the layout."""

    def __init__(
        self, parameters: Sequence[Parameter], groups: Groups, device: torch.device, replicated: bool, offloads: bool
    ) -> None:
        """`replicated`: data and context ranks own the same ranges, so that only tensor ranks hold others. `offloads`:
        what is owned lies in host memory."""
        self.parameters: dict[nn.Parameter, Parameter] = {parameter.value: parameter for parameter in parameters}
        self.device = torch.device("cpu") if offloads else device
        self._device, self._groups = device, groups
        self.replicated = replicated
        self._others = groups.tensor_group if replicated else groups.stage_group
        regroups = replicated and groups.regroups_experts  # else all ranks of the stage are among the others
        self._regrouped = [parameter for parameter in parameters if parameter.splits_experts and regroups]
        """experts, the rest of which is on other ranks than that of the other parameters"""

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """All ranks that hold parts or copies of these parameters: tensor ranks are neighbours in it."""
        return self._groups.stage_group

    def stage_rank(self, number: int) -> StageRank:
        """The coordinates of a rank of `stage_group`."""
        return self._groups.stage_rank(number)

    @property
    def compute_device(self) -> torch.device:
        """Where the model computes, which is also where ranks exchange tensors."""
        return self._device

    def counted(self, parameter: Parameter, start: int, flat: Tensor) -> Tensor:
        """Values that this rank is to add to sums over the whole parameter: those of its range `flat`, which begins at
        `start`, that are no padding; none if another rank adds the same values."""
        if not parameter.primary:
            return flat[:0]
        rows = parameter.spec.unpadded_shape[0] - parameter.offset[0]
        return flat[: max(0, rows * prod(parameter.local_shape[1:]) - start)]

    def totals(self, sizes: Callable[[Parameter], int]) -> "Totals":
        """`sizes(parameter)` zeros for each parameter."""
        return Totals(self, sizes)

    def sum(self, values: Tensor, group: dist.ProcessGroup) -> None:
        """Sums `values` over `group` in place, on the device: NCCL cannot read host memory."""
        on_device = values.to(self._device)
        dist.all_reduce(on_device, group=group)
        values.copy_(on_device)

    def sum_over_shards(self, values: Tensor, of: Callable[[Parameter], Tensor]) -> None:
        """In place. Where several stages hold a parameter, those of copies have added nothing to the part of `values`
        that is its (`of`), and get the very same sums."""
        experts = [of(parameter) for parameter in self._regrouped]
        of_experts = torch.cat(experts) if experts else None
        self.sum(values, self._others)
        if of_experts is not None:
            self.sum(of_experts, self._groups.all_experts_group)
            for part, total in zip(experts, of_experts.split([len(part) for part in experts]), strict=True):
                part.copy_(total)
        tied = (parameter for parameter in self.parameters.values() if parameter.tied)
        for parameter in sorted(tied, key=lambda parameter: (parameter.stages, parameter.name)):  # alike on all stages
            self.sum(of(parameter), self._groups.tied_group(parameter.stages))


class Totals:
    """Some fp64 sums for each parameter: each rank adds what it is to, then `sum`."""

    def __init__(self, replica_groups: ReplicaGroups, sizes: Callable[[Parameter], int]) -> None:
        self._replica_groups = replica_groups
        self._sizes = [sizes(parameter) for parameter in replica_groups.parameters.values()]
        self._flat = torch.zeros(sum(self._sizes), dtype=torch.float64, device=replica_groups.device)
        views: tuple[Tensor, ...] = self._flat.split(self._sizes)
        self._of = dict(zip(replica_groups.parameters, views, strict=True))

    def of(self, parameter: Parameter) -> Tensor:
        """A live view of the parameter's sums: add to it before `sum`, read it afterwards."""
        return self._of[parameter.value]

    def sum(self) -> None:
        """Sums over all ranks that hold a part of a parameter. Collective."""
        self._replica_groups.sum_over_shards(self._flat, self.of)

    def by_name(self) -> dict[str, list[float]]:
        names = (parameter.name for parameter in self._replica_groups.parameters.values())
        values = iter(self._flat.tolist())
        return {name: list(islice(values, size)) for name, size in zip(names, self._sizes, strict=True)}


def sum_of_squares(flat: Tensor) -> Tensor:
    """Sum of squares in fp64, so that the result does not depend on how a parameter is sharded."""
    blocks = (block.double().square().sum() for block in flat.split(_BLOCK))
    return sum(blocks, torch.zeros((), dtype=torch.float64, device=flat.device))


def squares_by_row_and_column(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of squares of [rows, columns] along each row, and along each column, in fp64."""
    rows, columns = [], torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
    for block in matrix.split(max(1, _BLOCK // matrix.shape[1])):
        squares = block.double().square()
        rows.append(squares.sum(1))
        columns += squares.sum(0)
    return torch.cat(rows), columns
