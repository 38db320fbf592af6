"""The curves of runs as a PNG or as one HTML page that needs nothing from outside."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from data_pipeline.common.atomic import atomic_write
from pretrain.pages.charts import BLUE, ORANGE, STYLE, svg
from pretrain.pages.numbers import compact
from pretrain.pages.page import page
from pretrain.pages.run_curves import QUANTITIES, Along, Quantity, RunCurves, not_finite

_COLOURS = (BLUE, ORANGE, "#059669", "#7c3aed", "#db2777", "#0891b2", "#ca8a04")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)))
_MOST_POINTS = 400
_PANEL = (5.0, 3.0)
"""inches"""
_MOST_BESIDE = 12
"""names that a free panel has room for"""


def write_picture(path: Path, curves: Sequence[RunCurves], along: Along) -> None:
    """Writes `path`, a PNG or an HTML page by its name. Raises OSError."""
    write = _page if path.suffix.lower() == ".html" else _png
    atomic_write(path, write(curves, along))


def _png(curves: Sequence[RunCurves], along: Along) -> bytes:
    shown = _shown(curves)
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with rc_context(STYLE):
        free = len(shown) < rows * columns and len(curves) <= _MOST_BESIDE
        below = 0 if free else 0.25 * len(curves)
        figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + below), layout="constrained")
        axes = list(np.ravel(figure.subplots(rows, columns)))
        for one, quantity in zip(axes, shown, strict=False):
            _draw(one, quantity, curves, along)
        for empty in axes[len(shown) :]:
            empty.set_axis_off()
        named = _legend(axes[: len(shown)])
        if free:
            axes[-1].legend(*named, loc="upper left")
        else:
            figure.legend(*named, loc="outside lower left", ncols=1)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150)
        return content.getvalue()


def _page(curves: Sequence[RunCurves], along: Along) -> bytes:
    panels = []
    for quantity in _shown(curves):
        with rc_context(STYLE):
            figure = Figure(figsize=_PANEL, layout="constrained")
            _draw(figure.subplots(), quantity, curves, along)
            panels.append(Markup(svg(figure)))
    rows = [
        {
            "label": curve.label,
            "colour": _COLOURS[number % len(_COLOURS)],
            "steps": curve.points["loss"].shape[1] if "loss" in curve.points else 0,
            "last": {key: _last(curve, key) for key in ("loss", "heldout", "tokens_per_second")},
        }
        for number, curve in enumerate(curves)
    ]
    notes = [said for curve in curves if (said := not_finite(curve)) is not None]
    text = page(Path(__file__).parent, "run_curves.html.jinja", rows=rows, panels=panels, notes=notes)
    return text.encode("utf-8", errors="backslashreplace")


def _shown(curves: Sequence[RunCurves]) -> list[Quantity]:
    return [quantity for quantity in QUANTITIES if any(quantity.key in curve.points for curve in curves)]


def _last(curve: RunCurves, key: str) -> float | None:
    points = curve.points.get(key)
    return None if points is None or not np.isfinite(points[1, -1]) else float(points[1, -1])


def _draw(axes: Axes, quantity: Quantity, curves: Sequence[RunCurves], along: Along) -> None:
    for number, curve in enumerate(curves):
        if quantity.key not in curve.points:
            continue
        x, values = curve.averaged(quantity.key, _MOST_POINTS)
        axes.plot(
            x, values, color=_COLOURS[number % len(_COLOURS)], label=curve.label, linewidth=1.3,
            linestyle=_DASHES[number // len(_COLOURS) % len(_DASHES)],
            marker="o" if len(x) == 1 or quantity.key == "heldout" else None, markersize=3.5,
        )  # fmt: skip
    axes.set_title(quantity.title)
    axes.set_xlabel("tokens trained on" if along == "tokens" else "optimizer steps")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))
    axes.ticklabel_format(axis="y", useOffset=False)
    if quantity.log:
        axes.set_yscale("log")
    elif quantity.key == "tokens_per_second":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))


def _legend(every: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Each run once, from the first panel that has it."""
    found: dict[str, Any] = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
