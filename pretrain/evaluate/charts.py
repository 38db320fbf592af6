"""The report's charts, as SVG to stand inside a page."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

_INK, _FAINT, _BLUE, _ORANGE = "#374151", "#d1d5db", "#2563eb", "#ea580c"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "report",  # the same ids for the same chart
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#f3f4f6",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}
_MAX_POINTS = 400
_WIDE, _PHONE, _PANEL = (10.3, 3.8), (3.6, 3.0), (3.3, 2.2)
"""inches of a page: 96 pixels each, so that text is as large as the page's own"""

Points = Sequence[tuple[float, float]]


def learning_curve(train: Points, heldout: Points, unigram_entropy: float | None) -> tuple[str, str]:
    """Loss, nats per token, over trained tokens: `train` and `heldout` are (tokens, loss). Drawn twice, for a wide page
    and for a phone's."""
    return _curve(_WIDE, train, heldout, unigram_entropy), _curve(_PHONE, train, heldout, unigram_entropy)


def _curve(inches: tuple[float, float], train: Points, heldout: Points, unigram_entropy: float | None) -> str:
    with rc_context(_STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        axes.plot(*_averaged(train), color=_BLUE, linewidth=1.4, label="training")
        if heldout:
            axes.plot(*np.transpose(heldout), "o-", color=_ORANGE, markersize=4, linewidth=1.4, label="held-out text")
        if unigram_entropy is not None:
            axes.axhline(
                unigram_entropy, color=_INK, linewidth=1, linestyle=(0, (4, 3)), label="token frequencies alone"
            )
        axes.set_xlabel("tokens trained on")
        axes.set_ylabel("loss (nats per token)")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(left=0)
        axes.legend()
        return _svg(figure)


def by_shots(tasks: Mapping[str, Mapping[int, tuple[float, float | None]]]) -> list[str]:
    """A panel for each task: share of right answers and its standard error, by number of shots."""
    return [_panel(task, values) for task, values in tasks.items()]


def _panel(task: str, values: Mapping[int, tuple[float, float | None]]) -> str:
    with rc_context(_STYLE):
        figure = Figure(figsize=_PANEL, layout="constrained")
        _plot(figure.subplots(), task, values)
        return _svg(figure)


def _plot(axes: Axes, task: str, values: Mapping[int, tuple[float, float | None]]) -> None:
    shots = sorted(values)
    shares = np.array([values[k][0] for k in shots])
    errors = np.array([values[k][1] or 0.0 for k in shots])
    positions = range(len(shots))
    axes.errorbar(
        positions, shares, errors, color=_BLUE, marker="o", markersize=5, linewidth=1.4, elinewidth=1, capsize=3
    )
    axes.set_title(task)
    axes.set_xticks(positions, [str(k) for k in shots])
    axes.set_xlim(-0.4, len(shots) - 0.6)
    axes.set_xlabel("shots")
    top = max(1.15 * float((shares + errors).max()), 0.01)
    axes.set_ylim(-0.04 * top, top)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol="%"))


def _averaged(points: Points) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most 400 points, each the mean of a run of neighbours."""
    if not points:
        return np.zeros(0), np.zeros(0)
    runs = np.array_split(np.array(points), math.ceil(len(points) / math.ceil(len(points) / _MAX_POINTS)))
    x, y = np.array([run.mean(axis=0) for run in runs]).T
    return x, y


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = re.sub('<g id="[^"]*"', "<g", svg[svg.index("<svg") :])  # groups of several charts have the same names
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # a page's own parser needs none, and nothing looks like a link
