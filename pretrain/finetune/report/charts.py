"""Charts of a fine-tuned model's report, as SVG inside the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from pretrain.finetune.answers import RowAnswer
from pretrain.pages.charts import BLUE, INK, ORANGE, STYLE, svg

_INCHES = (10.3, 3.4)


def curve(metrics: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], name: str) -> str:
    """Training and validation loss by step, and beside them the figure `name` on the validation rows."""
    losses = [(line["step"], line["loss"]) for line in metrics if line["loss"] is not None]
    heldout = {event["step"]: event["loss"] for event in events if event["event"] == "heldout"}
    figures = {event["step"]: event["figures"].get(name) for event in events if event["event"] == "figures"}
    points = [(step, value) for step, value in sorted(figures.items()) if value is not None]
    with rc_context(STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(*zip(*losses, strict=True), color=BLUE, linewidth=1, label="training")
        left.plot(*zip(*sorted(heldout.items()), strict=True), "o-", color=ORANGE, markersize=4, label="validation")
        left.set_title("loss")
        left.legend()
        if points:
            right.plot(*zip(*points, strict=True), "o-", color=ORANGE, markersize=4)
        right.set_title(f"{name}, validation")
        for axes in (left, right):
            axes.set_xlabel("step")
            axes.set_xlim(left=0)
        return svg(figure)


def scatter(predictions: Sequence[RowAnswer]) -> str:
    """Predicted over expected numbers."""
    expected, predicted = [one.expected for one in predictions], [one.predicted for one in predictions]
    low, high = min(*expected, *predicted), max(*expected, *predicted)
    with rc_context(STYLE):
        figure = Figure(figsize=(5, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.plot([low, high], [low, high], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(expected, predicted, ".", color=BLUE, markersize=4)
        axes.set_xlabel("expected")
        axes.set_ylabel("predicted")
        return svg(figure)
