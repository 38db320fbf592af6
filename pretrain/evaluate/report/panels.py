"""Small charts, one for each task: its metric by number of shots, by tokens or by parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from pretrain.evaluate.report.metrics import Metric
from pretrain.pages.charts import BLUE, INK, ORANGE, STYLE, svg
from pretrain.pages.numbers import compact

_GREY = "#9ca3af"
_COLOURS = (BLUE, ORANGE, "#059669", "#7c3aed", "#db2777", "#0891b2", "#ca8a04")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)))
_PANEL = (3.3, 2.4)
"""inches: a phone has room for one"""

Points = Sequence[tuple[float, float | None, float | None]]
"""(x, metric, standard error); None: not known"""


def by_shots(
    title: str,
    metric: Metric,
    *,
    scores: Mapping[int, tuple[float | None, float | None]],
    chance: float | None,
    beside: str,
    published: Mapping[int, float],
) -> str:
    """A panel: the metric and its standard error by number of shots. `published` is that of the model `beside`, as its
    paper writes it."""
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.subplots()
        shots = sorted(scores)
        positions = {k: position for position, k in enumerate(shots)}
        known = [(positions[k], *scores[k]) for k in shots]
        if published:
            axes.plot(
                [positions[k] for k in sorted(published)],
                [published[k] if metric.kind == "plain" else published[k] / 100 for k in sorted(published)],
                "s:", color=_GREY, markersize=3.5, linewidth=1.2, label=beside,
            )  # fmt: skip
        _errorbar(axes, known, BLUE, "-", "this model")
        if chance is not None:
            axes.axhline(chance, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="chance")
        axes.set_title(title)
        axes.set_xticks(range(len(shots)), [str(k) for k in shots])
        axes.set_xlim(-0.4, len(shots) - 0.6)
        axes.set_xlabel("shots")
        _scale(axes, metric)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize=7.5, labelspacing=0.2, handlelength=1.6)
        return svg(figure)


@dataclass(frozen=True)
class Series:
    """One line of `over`."""

    label: str
    points: Points
    group: int = 0
    """series of one group have one colour"""
    member: int = 0
    """number within the group: members differ in their dashes"""


def over(title: str, metric: Metric, series: Sequence[Series], *, along: str, chance: float | None, log: bool) -> str:
    """A panel: the metric and its standard error over `along`, tokens or parameters."""
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.subplots()
        for one in series:
            colour = _COLOURS[one.group % len(_COLOURS)]
            _errorbar(axes, one.points, colour, _DASHES[one.member % len(_DASHES)], one.label)
        if chance is not None:
            axes.axhline(chance, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="chance")
        axes.set_title(title)
        axes.set_xlabel(along)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
            values = sorted({x for one in series for x, _, _ in one.points})
            axes.set_xticks(_apart(values))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))
        _scale(axes, metric)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize=7.5, labelspacing=0.2, handlelength=1.8)
        return svg(figure)


def _apart(values: Sequence[float]) -> list[float]:
    """The values whose labels do not overlap on a logarithmic axis."""
    least = (values[-1] / values[0]) ** (1 / 6) if values[0] > 0 else 1.0
    kept: list[float] = []
    for value in values:
        if not kept or value >= kept[-1] * least:
            kept.append(value)
    return kept


def _errorbar(axes: Axes, points: Points, colour: str, dashes: Any, label: str) -> None:
    known = [(x, value, error or 0.0) for x, value, error in points if value is not None]
    if known:
        x, values, errors = np.array(known).T
        axes.errorbar(
            x, values, errors, color=colour, marker="o", markersize=4, linewidth=1.4, linestyle=dashes, elinewidth=1,
            capsize=2.5, label=label,
        )  # fmt: skip


def _scale(axes: Axes, metric: Metric) -> None:
    """Shares from 0 on; the others as they come."""
    axes.margins(y=0.12)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if metric.kind == "plain":
        return
    top = max(axes.get_ylim()[1], 0.01)
    axes.set_ylim(-0.04 * top, top)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=metric.unit.strip()))
