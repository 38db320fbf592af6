"""The seam between a sharding and a rule that updates parameters by statistics of full parameters.

A rank owns ranges of parameters, cut anywhere. A `Rule` gets those with their gradients, sums over ranks what it needs
of whole parameters (`totals.py`), and updates its ranges: the same rule on every layout and sharding. Adam needs no
such sums and stays with torch's fused kernel (`adam.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from pretrain.config.optimizer import Optimizer
from pretrain.engine.optimizer.totals import ReplicaGroups, sum_of_squares
from pretrain.models.placement import Parameter

RowFactors = Mapping[str, Tensor]
"""name of a parameter -> [rows] fp32: what to multiply each row of the full parameter by"""


@dataclass(frozen=True)
class Owned:
    """A range of a parameter that this rank updates: live views of one shape, in fp32 but for moments in bf16."""

    parameter: nn.Parameter
    start: int
    """in the parameter's local values, flattened"""
    main: Tensor
    """the weights"""
    moments: dict[str, Tensor]
    """state that the optimizer keeps of each weight, by its name in checkpoints"""


@dataclass(frozen=True, eq=False)
class OwnedRange:
    """A range of a parameter that some rank of the stage updates."""

    parameter: nn.Parameter
    start: int
    """in the parameter's local values, flattened"""
    count: int


@dataclass(frozen=True, kw_only=True)
class UpdateRange:
    """A range of a parameter to update now: live views, flat, in fp32 but for moments in bf16."""

    parameter: Parameter
    start: int
    main: Tensor
    gradient: Tensor
    moments: dict[str, Tensor]
    learning_rate: float
    """the step's, times the parameter's own multiplier"""
    weight_decay: float
    """the settings', times the parameter's own multiplier; 0 where weights do not decay"""
    update: int
    """number of this update among those of the parameter, from 1"""


class Rule(ABC):
    """One way to update parameters. Which ones decay, and which are matrices to it, is declared with them, and so are
    multipliers of learning rate, weight decay and eps."""

    moment_dtype = torch.float32

    def __init__(self, settings: Optimizer, replica_groups: ReplicaGroups) -> None:
        self.settings, self.replica_groups = settings, replica_groups
        self.updates = 0
        """updates made so far"""
        self._moments: dict[nn.Parameter, dict[str, Tensor]] = {}

    def set_ranges(self, ranges: Sequence[Sequence[OwnedRange]]) -> None:  # noqa: B027  # most rules need none
        """Notes what each rank of the stage owns of its parts of the parameters, by its number in `stage_group`; a
        single entry is what all of them own. Called once, before the first update."""

    def moments(self, parameter: Parameter, main: Tensor) -> dict[str, Tensor]:
        """Moments of the range of `parameter` that this rank owns, whose weights are `main`. Zeros before the first
        step."""
        if parameter.value not in self._moments:
            self._moments[parameter.value] = {
                name: torch.zeros_like(main, dtype=self.moment_dtype) for name in self.moment_names(parameter)
            }
        return self._moments[parameter.value]

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        """State that is kept of whole parameters, by its name in checkpoints: live, and alike on all ranks of a
        stage."""
        yield from ()

    @torch.no_grad()
    def update(
        self, owned: Iterable[Owned], gradients: Iterable[Tensor], learning_rate: float, row_factors: RowFactors
    ) -> None:  # fmt: skip
        """Updates all ranges that this rank owns, given their gradients, then multiplies rows of the new weights.
        Collective."""
        self.updates += 1
        ranges = [
            UpdateRange(
                parameter=parameter,
                start=o.start,
                main=o.main.view(-1),
                gradient=gradient.view(-1),
                moments={name: moment.view(-1) for name, moment in o.moments.items()},
                learning_rate=learning_rate * parameter.spec.lr_mult,
                weight_decay=self.settings.weight_decay * parameter.spec.wd_mult if parameter.spec.decays else 0.0,
                update=self.update_of(parameter),
            )
            for o, gradient in zip(owned, gradients, strict=True)
            for parameter in [self.replica_groups.parameters[o.parameter]]
            if self.update_of(parameter) > 0
        ]
        self.apply(ranges)
        for span in ranges:
            if span.parameter.name in row_factors:
                span.main.mul_(_factors_of(span, row_factors[span.parameter.name]))

    def update_of(self, parameter: Parameter) -> int:
        """Number of this update among those of `parameter`, from 1; less while it is still frozen."""
        return self.updates - parameter.spec.frozen_updates

    def _squares(
        self, ranges: Sequence[UpdateRange], update: Callable[[UpdateRange], Tensor]
    ) -> dict[str, list[float]]:
        """Sums of squares of each parameter's weights and of its updates, by parameter name.

        `update` is computed here and once more when it is applied: to keep it would take the memory of a moment."""
        totals = self.replica_groups.totals(lambda parameter: 2)
        for span in ranges:
            for index, values in enumerate((span.main, update(span))):
                totals.of(span.parameter)[index] += sum_of_squares(
                    self.replica_groups.counted(span.parameter, span.start, values)
                )
        totals.sum()
        return totals.by_name()

    @abstractmethod
    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        """Names in checkpoints of the moments that each weight of `parameter` has."""

    @abstractmethod
    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        """Updates weights and moments of `ranges`: those that this rank owns and that are not frozen. Collective."""


def _factors_of(span: UpdateRange, factors_R: Tensor) -> Tensor:
    """The factor of each value of a range: that of its row of the full parameter."""
    height, *rest = span.parameter.local_shape
    first = span.parameter.offset[0]
    of_values = factors_R[first : first + height].repeat_interleave(prod(rest))
    return of_values[span.start : span.start + span.main.numel()].to(span.main.device)
