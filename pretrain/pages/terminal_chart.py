"""Charts of plain characters, for a terminal or a log."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrain.pages.numbers import compact
from pretrain.pages.run_curves import QUANTITIES, Along, ExpertCounts, Quantity, RunCurves, layer_name, loads
from pretrain.run_dir.experts import IDLE_LOAD

MARKS = "*o+x#@%&abcdefghijklmnpqrstuvwyz"
"""characters of the runs, in order"""
_ROWS, _LABEL = 10, 9
LOADS = ((IDLE_LOAD, "_"), (0.5, "."), (0.8, "-"), (1.25, "="), (2, "+"), (5, "#"), (math.inf, "@"))
"""characters of loads below a multiple of the mean"""
_NARROWEST = 20


def terminal_lines(curves: Sequence[RunCurves], along: Along, notes: Sequence[str], columns: int) -> Iterator[str]:
    """Yields a chart of each quantity that a run has, a map of its experts, then the names of the runs and the
    notes."""
    for quantity in QUANTITIES:
        if any(quantity.key in curve.points for curve in curves):
            yield quantity.title + (" (logarithmic)" if quantity.log else "")
            yield from _chart(curves, quantity, max(_NARROWEST, columns - _LABEL - 2), along)
            yield ""
    for curve in curves:
        if curve.experts is not None:
            yield from _experts(curve.experts, "" if len(curves) == 1 else f", {curve.label}", columns)
            yield ""
    for number, curve in enumerate(curves):
        yield f"{MARKS[number % len(MARKS)]} {curve.label}"
    yield from (f"note: {note}" for note in notes)


def _chart(curves: Sequence[RunCurves], quantity: Quantity, width: int, along: Along) -> Iterator[str]:
    drawn = {
        number: _drawable(curve.averaged(quantity.key, width), quantity)
        for number, curve in enumerate(curves)
        if quantity.key in curve.points
    }
    every = np.concatenate(list(drawn.values()), axis=1)
    if not every.shape[1]:
        yield "  (no finite number)"
        return
    (left, low), (right, high) = every.min(axis=1), every.max(axis=1)
    grid = [[" "] * width for _ in range(_ROWS)]
    for number, points in drawn.items():
        columns = _cells(points[0], left, right, width)
        rows = _ROWS - 1 - _cells(points[1], low, high, _ROWS)
        for column, row in zip(columns, rows, strict=True):
            grid[row][column] = MARKS[number % len(MARKS)]
    for row, cells in enumerate(grid):
        level = high - (high - low) * row / (_ROWS - 1)
        label = _number(10**level if quantity.log else level) if row in (0, _ROWS // 2, _ROWS - 1) else ""
        yield f"{label:>{_LABEL}} |{''.join(cells)}".rstrip()
    ends = f"{compact(left)} {along}", compact(right)
    yield " " * (_LABEL + 2) + ends[0] + ends[1].rjust(width - len(ends[0]))


def _experts(experts: ExpertCounts, of_run: str, columns: int) -> Iterator[str]:
    """A row for each layer, and a character for each expert, or for neighbours where the terminal is too narrow."""
    names, loads_LE = [layer_name(layer) for layer in experts.counts], loads(experts)
    label = max(map(len, names))
    together = math.ceil(loads_LE.shape[1] / max(_NARROWEST, columns - label - 2))
    parts = np.array_split(loads_LE, math.ceil(loads_LE.shape[1] / together), axis=1)
    each = f", {together} together" if together > 1 else ""
    yield f"load of experts at step {experts.step:,}{of_run}{each}"
    yield f"  of the mean: {' '.join(f'{sign} <{level:g}' for level, sign in LOADS[:-1])} {LOADS[-1][1]} more"
    for name, row in zip(names, np.stack([part.mean(axis=1) for part in parts], axis=1), strict=True):
        yield f"{name:>{label}} |{''.join(_sign(load) for load in row)}|"


def _sign(load: float) -> str:
    return next(sign for level, sign in LOADS if load < level)


def _drawable(points: NDArray[np.float64], quantity: Quantity) -> NDArray[np.float64]:
    """Points with finite values, which are logarithms on a logarithmic axis."""
    if quantity.log:
        points = np.stack([points[0], np.log10(np.where(points[1] > 0, points[1], np.nan))])
    return points[:, np.isfinite(points[1])]


def _cells(values: NDArray[np.float64], low: float, high: float, number: int) -> NDArray[np.intp]:
    share = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    return np.rint(share * (number - 1)).astype(np.intp)


def _number(value: float) -> str:
    """At most 9 characters."""
    return compact(value) if value >= 1e3 else f"{value:.4g}" if not math.isclose(value, 0, abs_tol=1e-12) else "0"
