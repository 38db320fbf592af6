"""A run's learning curve, as SVG inside a page."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from pretrain.pages.charts import BLUE, INK, ORANGE, STYLE, svg
from pretrain.pages.numbers import compact

_MAX_POINTS = 400
_WIDE, _PHONE = (10.3, 3.8), (3.6, 3.0)
"""inches of a page: 96 pixels each, so that text is as large as the page's own"""

Points = Sequence[tuple[float, float]]


def learning_curve(train: Points, heldout: Points, unigram_entropy: float | None) -> tuple[str, str]:
    """Loss, nats per token, over trained tokens: `train` and `heldout` are (tokens, loss). Drawn twice, for a wide page
    and for a phone's."""
    return _curve(_WIDE, train, heldout, unigram_entropy), _curve(_PHONE, train, heldout, unigram_entropy)


def _curve(inches: tuple[float, float], train: Points, heldout: Points, unigram_entropy: float | None) -> str:
    with rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        axes.plot(*_averaged(train), color=BLUE, linewidth=1.4, label="training")
        if heldout:
            axes.plot(*np.transpose(heldout), "o-", color=ORANGE, markersize=4, linewidth=1.4, label="held-out text")
        if unigram_entropy is not None:
            axes.axhline(
                unigram_entropy, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="token frequencies alone"
            )
        axes.set_xlabel("tokens trained on")
        axes.set_ylabel("loss (nats per token)")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: compact(tokens)))
        axes.set_xlim(left=0)
        axes.legend()
        return svg(figure)


def _averaged(points: Points) -> tuple[NDArray[Any], NDArray[Any]]:
    """At most 400 points, each the mean of a run of neighbours."""
    if not points:
        return np.zeros(0), np.zeros(0)
    runs = np.array_split(np.array(points), math.ceil(len(points) / math.ceil(len(points) / _MAX_POINTS)))
    x, y = np.array([run.mean(axis=0) for run in runs]).T
    return x, y
