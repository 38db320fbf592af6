"""A picture of what a recurrent decoder attends to while it writes: source pieces across, target pieces downwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from pretrain.config.model import Model
from pretrain.engine.base import DecodeEngine
from pretrain.errors import ConfigError

MOST = 4
"""sentences of a picture"""


@dataclass(frozen=True)
class AttentionMatrix:
    """Attention of one sentence."""

    source: Sequence[str]
    target: Sequence[str]
    weights: NDArray[np.float32]
    """[target pieces, source pieces], each row a distribution"""


def check_attends(model: Model) -> None:
    """Raises ConfigError for a model that has no one matrix of attention to its source."""
    if model.recurrence is None or not model.recurrence.attends or not model.is_encoder_decoder:
        raise ConfigError(
            "--attention draws the one attention matrix of a recurrent encoder-decoder with an attention score, "
            f"which this {model.family} model does not have: leave it out"
        )


def source_attention(
    engine: DecodeEngine, source: Sequence[int], start: int, target: Sequence[int]
) -> NDArray[np.float32]:
    """[targets, sources]: weights with which each of `target` was written after `start` and those before it."""
    labels = np.array([target], np.int64)
    read = np.array([[start, *target[:-1]]], np.int64)
    rows = Rows(np.array([source], np.int64), labels, np.ones(labels.shape, np.float32), decoder_tokens=read)
    weights: NDArray[np.float32] = engine.source_attention(rows)[0]
    return weights


def draw(matrices: Sequence[AttentionMatrix], path: Path) -> None:
    """Writes a picture of up to `MOST` sentences; the ending of `path` says of what format."""
    shown = matrices[:MOST]
    columns = min(2, len(shown))
    widest, longest = (max(len(getattr(one, side)) for one in shown) for side in ("source", "target"))
    rows = math.ceil(len(shown) / columns)
    size = columns * (0.32 * widest + 1.8), rows * (0.26 * longest + 1.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    image = None
    for axes, one in zip(panels, shown, strict=False):
        image = axes.imshow(one.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(one.source)), one.source, rotation=90, fontsize=8)
        axes.set_yticks(range(len(one.target)), one.target, fontsize=8)
        axes.xaxis.tick_top()
        axes.set_xlabel("source")
        axes.set_ylabel("target")
    assert image is not None
    figure.colorbar(image, ax=list(panels[: len(shown)]), label="attention weight", shrink=0.6)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
