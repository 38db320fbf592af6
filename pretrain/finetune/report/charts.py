"""Charts of a fine-tuned model's report, as SVG inside the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from pretrain.finetune.answers import RowAnswer
from pretrain.pages.charts import BLUE, INK, ORANGE, STYLE, svg

_INCHES = (10.3, 3.4)


def curve(metrics: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Training and validation loss by step, and beside them the figures `names` on the validation rows, those of
    sources (SOURCE/FIGURE) as thinner lines than that of the only source or their mean."""
    losses = [(line["step"], line["loss"]) for line in metrics if line["loss"] is not None]
    heldout = {event["step"]: event["loss"] for event in events if event["event"] == "heldout"}
    figures = {event["step"]: event["figures"] for event in events if event["event"] == "figures"}
    with rc_context(STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(*zip(*losses, strict=True), color=BLUE, linewidth=1, label="training")
        left.plot(*zip(*sorted(heldout.items()), strict=True), "o-", color=ORANGE, markersize=4, label="validation")
        left.set_title("loss")
        left.legend()
        for name in reversed(names):
            points = [(step, one[name]) for step, one in sorted(figures.items()) if one.get(name) is not None]
            if points:
                of_source = "/" in name
                shape = {"markersize": 2, "linewidth": 1} if of_source else {"color": ORANGE, "markersize": 4}
                right.plot(*zip(*points, strict=True), "o-", label=name if of_source else "mean", **shape)
        if len(names) > 1:
            right.legend()
        right.set_title("validation" if "/" in names[0] else f"{names[0]}, validation")
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
