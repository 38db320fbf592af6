"""Chinchilla's second approach: at each of several budgets, a parabola of the loss over log N has its lowest point at
the best size, and these sizes lie on a power law of compute (Hoffmann et al. 2022, arXiv 2203.15556, section 3.2)."""

import math
from dataclasses import dataclass

import numpy as np

from pretrain.scaling.points import Points, RunPoint

_WIDTH = math.log(1.3)  # runs within this are of one budget: what is read off a published figure scatters
_LEAST = 4  # points of a parabola
_FLAT = 1e-3  # of the loss: runs of a budget that differ by less have no valley


@dataclass(frozen=True)
class Valley:
    """Runs of one budget."""

    flops: float
    best_parameters: float
    best_loss: float
    curve: tuple[float, float, float]
    """coefficients of (log N)^2, of log N and of 1"""
    runs: tuple[RunPoint, ...]


@dataclass(frozen=True)
class IsoFlop:
    """`best parameters = factor * flops^exponent`."""

    valleys: tuple[Valley, ...]
    factor: float | None
    exponent: float | None
    """None if fewer than two budgets have a lowest point"""

    def best_parameters(self, flops: float) -> float | None:
        if self.exponent is None or self.factor is None:
            return None
        return float(self.factor * flops**self.exponent)


def isoflop(points: Points) -> IsoFlop:
    """Fit over the budgets at which four or more points, of three or more sizes, have a lowest point among them."""
    valleys = [valley for runs in _budgets(points) if (valley := _valley(runs)) is not None]
    if len(valleys) < 2:
        return IsoFlop(tuple(valleys), None, None)
    slope, height = np.polyfit(
        np.log([valley.flops for valley in valleys]), np.log([valley.best_parameters for valley in valleys]), 1
    )
    return IsoFlop(tuple(valleys), math.exp(height), float(slope))


def _budgets(points: Points) -> list[list[RunPoint]]:
    """The most runs within one width, the most of those that are left, and so on; by compute."""
    rest, budgets = sorted(points.runs, key=lambda run: run.flops), []
    while rest:
        logs = np.log([run.flops for run in rest])
        ends = np.searchsorted(logs, logs + _WIDTH, side="right")
        first = int(np.argmax(ends - np.arange(len(rest))))
        budgets.append(rest[first : ends[first]])
        rest = rest[:first] + rest[ends[first] :]
    return sorted(budgets, key=lambda runs: runs[0].flops)


def _valley(runs: list[RunPoint]) -> Valley | None:
    sizes = np.log([run.parameters for run in runs])
    if len(runs) < _LEAST or len(Points(tuple(runs)).rungs()) < 3:
        return None
    losses = [run.loss for run in runs]
    square, slope, height = map(float, np.polyfit(sizes, losses, 2))
    if square <= 0 or max(losses) - min(losses) <= _FLAT * min(losses):
        return None
    lowest = -slope / (2 * square)
    if not sizes.min() <= lowest <= sizes.max():
        return None  # the best size lies beyond those that were tried
    flops = math.exp(float(np.mean(np.log([run.flops for run in runs]))))
    loss = height - slope**2 / (4 * square)
    return Valley(flops, math.exp(lowest), loss, (square, slope, height), tuple(runs))
