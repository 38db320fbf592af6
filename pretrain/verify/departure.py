"""Departures of a layout from the reference: quantity, step, parameter and ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pretrain.layout.layout import Layout
from pretrain.verify.routes import RouteFlips
from pretrain.verify.samples import Flips

QUANTITIES = (
    "initial weights", "samples", "token count", "replicas", "checkpoint", "router biases", "routes",
    "loss", "gradient norm", "gradient", "update", "decay", "scores", "flips", "router scores", "route flips",
)  # fmt: skip
EXACT = QUANTITIES[:7]

Sighting = tuple[float, str | None, int | None]
"""(difference, parameter, rank) of a quantity, as observed on one rank"""


@dataclass(frozen=True, kw_only=True)
class Departure:
    """One quantity of one step that is further from the reference than rounding explains."""

    step: int
    quantity: str
    by: float
    """nats for loss; root mean square nats for scores; a count for exact quantities; a fraction of the expected decay
    for decay, of all samples for flips; a multiple of what rounding explains for route flips; of the spread of scores
    for router scores; relative to the size of the reference for the others"""
    bound: float
    parameter: str | None
    """parameter that departs furthest"""
    parameters: int
    """number of parameters that depart"""
    stages: tuple[int, ...]
    """pipeline stages on which it was observed"""
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, step: int, quantity: str, bound: float, measured: Sequence[Sighting], layout: Layout) -> "Departure":
        """The departure that `measured` shows, some of which is beyond `bound`."""
        by, parameter, _ = max(measured, key=lambda one: size(one[0]))
        beyond = [(name, rank) for amount, name, rank in measured if not amount <= bound]
        ranks = {rank for name, rank in beyond if name == parameter and rank is not None}
        if parameter is None and len(ranks) == layout.world:
            ranks = set()  # seen on every rank: no rank stands out
        stages = {layout.coordinates(rank)[3] for rank in ranks}
        parameters = len({name for name, _ in beyond if name is not None})
        return cls(
            step=step,
            quantity=quantity,
            by=float(by),
            bound=bound,
            parameter=parameter,
            parameters=parameters,
            stages=tuple(sorted(stages)),
            ranks=tuple(sorted(ranks)),
        )

    def __str__(self) -> str:
        what = self.quantity if self.parameter is None else f"{self.quantity} of {self.parameter}"
        what += f" (and of {self.parameters - 1} more)" if self.parameters > 1 else ""
        where = f" on stage {_numbers(self.stages)} (rank {_numbers(self.ranks)})" if self.ranks else ""
        if self.quantity in EXACT:
            return f"step {self.step}: {what} differ{where}"
        return f"step {self.step}: {what} departs by {self.by:.2e}{where}; rounding explains {self.bound:.2e}"


@dataclass
class Verdict:
    """The comparison of one layout with the reference."""

    largest: dict[str, float]
    """largest difference of each quantity, over steps and parameters"""
    departures: list[Departure]
    """departures of the first step that has any, in the order of QUANTITIES"""
    flips: Flips = field(default_factory=Flips)
    """samples of a generator that are not the reference's, of all steps"""
    route_flips: RouteFlips = field(default_factory=RouteFlips)
    """choices of routers that are not the reference's, of all steps"""

    @property
    def same(self) -> bool:
        return not self.departures


def size(amount: float) -> float:
    """Sort key of a difference: NaN counts as the largest."""
    return np.inf if np.isnan(amount) else amount


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
