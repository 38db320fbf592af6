"""A scaling law as charts: loss over compute with its fits, what is left of each run, and IsoFLOP parabolas."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from pretrain.pages.charts import INK, ORANGE, STYLE, svg
from pretrain.pages.numbers import compact
from pretrain.scaling.best_size import best_parameters, why_unknown
from pretrain.scaling.isoflop import IsoFlop
from pretrain.scaling.law import Law
from pretrain.scaling.points import Points

_WIDE, _PHONE, _PANEL = (10.3, 4.4), (3.6, 3.4), (3.3, 2.6)
"""inches, 96 pixels each"""
_NAMED = 8  # sizes that a legend has room for
_FURTHER = 10  # times the compute of the largest run, up to which curves are drawn

Predicted = Sequence[tuple[float, float, float]]
"""(FLOPs, low, high) of each prediction"""


def loss_over_compute(law: Law, predicted: Predicted) -> tuple[str, str]:
    """Loss over compute with its fits and predictions, drawn for a wide page and for a phone's."""
    return _loss(_WIDE, law, predicted), _loss(_PHONE, law, predicted)


def residuals(law: Law) -> str:
    """Distance of each run from the form that speaks first, in per cent; rings: by the backtest, to which it was
    new."""
    main = law.main
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.subplots()
        off = 100 * (main.fitted.losses(law.points.logs) / law.points.losses - 1)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.scatter([run.flops for run in law.points.runs], off, c=_colours(law.points), s=14)
        if main.backtest is not None:
            rows = main.backtest.rows
            axes.scatter(
                [row.run.flops for row in rows], [100 * row.error for row in rows], s=26, facecolors="none",
                edgecolors=ORANGE, linewidths=1.2, label="backtest",
            )  # fmt: skip
            axes.legend(fontsize=7.5, handlelength=1.6)
        axes.set_title("off by, % of the loss")
        _compute_axis(axes)
        return svg(figure)


def parabolas(isoflop: IsoFlop) -> str:
    """One for each budget, with its lowest point."""
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.subplots()
        shades = colormaps["viridis"](np.linspace(0.05, 0.85, len(isoflop.valleys)))
        for shade, valley in zip(shades, isoflop.valleys, strict=True):
            sizes = np.array([run.parameters for run in valley.runs])
            axes.scatter(sizes, [run.loss for run in valley.runs], color=shade, s=9)
            along = np.geomspace(sizes.min(), sizes.max(), 60)
            axes.plot(along, np.polyval(valley.curve, np.log(along)), color=shade, linewidth=1)
            axes.plot(valley.best_parameters, valley.best_loss, "D", color=ORANGE, markersize=3.5)
        axes.set_title("loss by size, at fixed budgets")
        axes.set_xscale("log")
        axes.set_xlabel("parameters")
        _few_ticks(axes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))
        return svg(figure)


def best_sizes(law: Law) -> str:
    """The size of least loss over compute: by the form that speaks first, and by IsoFLOP."""
    points, isoflop = law.points, law.isoflop
    flops = np.geomspace(min(run.flops for run in points.runs), _FURTHER * points.most_flops, 40)
    with rc_context(STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        axes = figure.subplots()
        main, factor = law.main.fitted, points.flops_per_parameter
        axes.plot(flops, [best_parameters(main, factor, one) for one in flops], color=INK, label=main.form.name)
        if isoflop.valleys:
            axes.plot(
                [valley.flops for valley in isoflop.valleys],
                [valley.best_parameters for valley in isoflop.valleys], "D", color=ORANGE, markersize=4,
                label="IsoFLOP",
            )  # fmt: skip
        if isoflop.exponent is not None:
            axes.plot(flops, [isoflop.best_parameters(one) or np.nan for one in flops], ":", color=ORANGE)
        axes.set_title("best size")
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))
        axes.legend(fontsize=7.5, handlelength=1.6)
        _compute_axis(axes)
        return svg(figure)


def _loss(inches: tuple[float, float], law: Law, predicted: Predicted) -> str:
    points, rungs = law.points, law.points.rungs()
    with rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        shades = colormaps["viridis"](np.linspace(0.05, 0.85, len(rungs)))
        for shade, rung in zip(shades, rungs, strict=True):
            named = compact(float(np.median([run.parameters for run in rung.runs])))
            axes.scatter(
                [run.flops for run in rung.runs], rung.losses, color=shade, s=16, zorder=3,
                label=named if len(rungs) <= _NAMED else None,
            )  # fmt: skip
            if len(rungs) <= _NAMED:
                _curve_of_size(axes, law, rung, shade)
        flops = np.geomspace(min(run.flops for run in points.runs), _FURTHER * points.most_flops, 60)
        main = law.main.fitted
        if main.form.of_compute or why_unknown(main, points) is None:
            axes.plot(flops, _frontier(law, flops), color=INK, linewidth=1.4, label=f"best, by {main.form.name}")
        for number, (at, low, high) in enumerate(predicted):
            axes.plot([at, at], [low, high], color=ORANGE, linewidth=3, label=None if number else "predicted")
        axes.set_ylabel("loss (nats per token)")
        axes.legend(fontsize=8, ncols=2 if inches is _WIDE else 1)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:.3g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _compute_axis(axes)
        return svg(figure)


def _curve_of_size(axes: Axes, law: Law, rung: Points, shade: Any) -> None:
    size = float(np.median([run.parameters for run in rung.runs]))
    tokens = np.geomspace(min(run.tokens for run in rung.runs) / 1.5, 3 * max(run.tokens for run in rung.runs), 40)
    flops = law.points.flops_per_parameter * size * tokens
    logs = np.log([np.full_like(tokens, size), tokens, flops])
    if not law.main.fitted.form.of_compute:
        axes.plot(flops, law.main.fitted.losses(logs), color=shade, linewidth=0.8, alpha=0.7)


def _frontier(law: Law, flops: NDArray[np.float64]) -> NDArray[np.float64]:
    main, factor = law.main.fitted, law.points.flops_per_parameter
    sizes = np.array([best_parameters(main, factor, one) for one in flops])
    return main.losses(np.log([sizes, flops / (factor * sizes), flops]))


def _colours(points: Points) -> Any:
    sizes = np.log([run.parameters for run in points.runs])
    return colormaps["viridis"](0.05 + 0.8 * (sizes - sizes.min()) / max(float(np.ptp(sizes)), 1e-9))


def _compute_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("training compute, FLOPs")
    _few_ticks(axes)


def _few_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(LogLocator(numticks=5))
    axes.xaxis.set_minor_formatter(NullFormatter())
