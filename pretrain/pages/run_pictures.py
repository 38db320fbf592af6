"""The curves of runs as a PNG or as one HTML page that needs nothing from outside."""

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from data_pipeline.common.atomic import atomic_write
from pretrain.pages.charts import BLUE, ORANGE, STYLE, svg
from pretrain.pages.expert_maps import draw_experts
from pretrain.pages.numbers import compact
from pretrain.pages.page import page
from pretrain.pages.run_curves import LAYER_QUANTITIES, QUANTITIES, Along, Quantity, RunCurves

_COLOURS = (BLUE, ORANGE, "#059669", "#7c3aed", "#db2777", "#0891b2", "#ca8a04")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)))
_MOST_POINTS = 400
_PANEL = (5.0, 3.0)
"""inches"""
_MOST_BESIDE = 12
"""names that a free panel has room for"""
_GREY, _MOST_NAMED = "#6b7280", 5
"""colour of modules in no layer; number of layers that a panel names"""

Draw = Callable[[Axes], None]


def write_picture(path: Path, curves: Sequence[RunCurves], along: Along, notes: Sequence[str]) -> None:
    """Writes `path`, a PNG or by its name an HTML page, which has the notes, too. Raises OSError."""
    of_page = path.suffix.lower() == ".html"
    atomic_write(path, _page(curves, along, notes) if of_page else _png(curves, along))


def _png(curves: Sequence[RunCurves], along: Along) -> bytes:
    shown, by_layer = _shown(curves, along), _shown_by_layer(curves, along)
    panels = len(shown) + len(by_layer)
    columns = min(2, panels)
    rows = -(-panels // columns)
    with rc_context(STYLE):
        free = panels < rows * columns and len(curves) <= _MOST_BESIDE
        below = 0 if free else 0.25 * len(curves)
        figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + below), layout="constrained")
        axes = list(np.ravel(figure.subplots(rows, columns)))
        for one, draw in zip(axes, (*shown, *by_layer), strict=False):
            draw(one)
        for empty in axes[panels:]:
            empty.set_axis_off()
        named = _legend(axes[: len(shown)])
        if free:
            axes[-1].legend(*named, loc="upper left")
        else:
            figure.legend(*named, loc="outside lower left", ncols=1)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150)
        return content.getvalue()


def _page(curves: Sequence[RunCurves], along: Along, notes: Sequence[str]) -> bytes:
    panels = []
    for draw in (*_shown(curves, along), *_shown_by_layer(curves, along)):
        with rc_context(STYLE):
            figure = Figure(figsize=_PANEL, layout="constrained")
            draw(figure.subplots())
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
    text = page(Path(__file__).parent, "run_curves.html.jinja", rows=rows, panels=panels, notes=notes)
    return text.encode("utf-8", errors="backslashreplace")


def _shown(curves: Sequence[RunCurves], along: Along) -> list[Draw]:
    return [
        partial(_draw, quantity=quantity, curves=curves, along=along)
        for quantity in QUANTITIES
        if any(quantity.key in curve.points for curve in curves)
    ]


def _shown_by_layer(curves: Sequence[RunCurves], along: Along) -> list[Draw]:
    """A panel for each run and each quantity that it has by layer, and for its experts."""
    alone = len(curves) == 1
    by_layer: list[Draw] = [
        partial(_draw_layers, quantity=quantity, curve=curve, along=along, alone=alone)
        for curve in curves
        for quantity in LAYER_QUANTITIES
        if curve.layers(quantity)
    ]
    of_experts: list[Draw] = [
        partial(draw_experts, experts=curve.experts, of_run="" if alone else f", {curve.label}")
        for curve in curves
        if curve.experts is not None
    ]
    return by_layer + of_experts


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
    _name_axes(axes, quantity, along)
    if quantity.key == "tokens_per_second":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))


def _draw_layers(axes: Axes, quantity: Quantity, curve: RunCurves, along: Along, alone: bool) -> None:
    """A curve for each layer, from dark to bright in their order; modules in no layer are grey."""
    names = curve.layers(quantity)
    layers = [name for name in names if name.rpartition(".")[2].isdigit()]
    for name in names:
        x, values = curve.averaged(quantity.key + name, _MOST_POINTS)
        depth = layers.index(name) / max(1, len(layers) - 1) if name in layers else None
        axes.plot(
            x, values, color=_GREY if depth is None else colormaps["viridis"](0.9 * depth), linewidth=1.1,
            linestyle=":" if depth is None else "-", marker="o" if len(x) == 1 else None, markersize=3.5,
        )  # fmt: skip
    chosen = (
        {names.index(layers[at]) for at in np.linspace(0, len(layers) - 1, _MOST_NAMED).astype(int)} if layers else ()
    )
    if quantity.key == "idle_experts/":
        axes.set_ylim(-0.03, 1.03)
    handles = [axes.lines[number] for number in sorted(chosen)]
    axes.legend(handles, [names[number] for number in sorted(chosen)], fontsize=6, loc="best")
    _name_axes(axes, quantity, along, "" if alone else f", {curve.label}")


def _name_axes(axes: Axes, quantity: Quantity, along: Along, of_run: str = "") -> None:
    axes.set_title(quantity.title + of_run)
    axes.set_xlabel("tokens trained on" if along == "tokens" else "optimizer steps")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: compact(number)))
    axes.ticklabel_format(axis="y", useOffset=False)
    if quantity.log:
        axes.set_yscale("log")


def _legend(every: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Each run once, from the first panel that has it."""
    found: dict[str, Any] = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
