"""Coordinates of activations as a picture: mean |x| over the width, a line for each step, standard beside muP."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from pretrain.pages.charts import STYLE
from pretrain.scaling.coordinates import PARAMETRIZATIONS, Measured, kind_of, kinds, of

PICTURE = "coordinates.png"
_PANEL = (2.0, 2.0)
"""inches"""
_LEAST_RANGE = 8.0
"""least ratio of the ends of a panel's axis"""


def draw(measured: Sequence[Measured], directory: Path) -> Path:
    """Writes `coordinates.png`: a column for each kind of activation, of its last layer. Returns its path."""
    columns = kinds(measured)
    with rc_context(STYLE):
        size = _PANEL[0] * len(columns), _PANEL[1] * len(PARAMETRIZATIONS)
        figure = Figure(figsize=size, layout="constrained", dpi=110)
        panels = figure.subplots(len(PARAMETRIZATIONS), len(columns), sharey="col", squeeze=False)
        for row, parametrization in zip(panels, PARAMETRIZATIONS, strict=True):
            for axes, kind in zip(row, columns, strict=True):
                _panel(axes, of(measured, parametrization), kind)
                axes.set_title(f"{kind}\n{parametrization}", fontsize=8)
        path = directory / PICTURE
        steps = len(next(iter(measured[0].sizes.values()))) - 1
        figure.suptitle(
            f"Mean |x| over the width, at the last layer. Light: before the first step; dark: after {steps} steps",
            fontsize=9,
        )
        figure.savefig(path)
    return path


def _panel(axes: Axes, found: Sequence[Measured], kind: str) -> None:
    name = [name for name in found[0].sizes if kind_of(name) == kind][-1]
    widths, steps = [one.width for one in found], len(found[0].sizes[name])
    for step, shade in enumerate(colormaps["viridis"](np.linspace(0.9, 0.1, steps))):
        axes.plot(widths, [one.sizes[name][step] for one in found], color=shade, linewidth=1, marker="o", markersize=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < _LEAST_RANGE * low:  # else rounding would look like a slope
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / _LEAST_RANGE**0.5, middle * _LEAST_RANGE**0.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(widths, [str(width) for width in widths], fontsize=7)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", labelsize=7)
    axes.yaxis.set_minor_formatter(NullFormatter())
