"""Map of the keys that each layer and head of a model attends to, as text and as a picture (layers x heads)."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pretrain.config.model import Model
from pretrain.config.patterns.base import PatternSettings

_POSITIONS, _CELLS = 1024, 128  # drawn of a sequence, from its beginning; points along each side of a picture
_LAYERS, _HEADS = 12, 12  # of the picture, at most
Shares = np.ndarray[Any, np.dtype[np.float64]]


def lines(model: Model) -> list[str]:
    """Row for each layer: its pattern, and the mean number of keys that a query sees. Consecutive layers with the same
    pattern share a row."""
    rows: list[tuple[int, int, str]] = []
    for layer, (causal, pattern) in enumerate(_layers(model)):
        length = model.label_length if causal else model.sequence_length
        keys = pattern.mean_keys(length, causal)
        of_all = (length + 1) / 2 if causal else length
        text = f"{_pattern_text(pattern.model_dump(mode='json'))}: {keys:,.1f} keys, {keys / of_all:.1%} of dense"
        if rows and rows[-1][2] == text:
            rows[-1] = rows[-1][0], layer, text
        else:
            rows.append((layer, layer, text))
    names = [f"layer {first}" if first == last else f"layers {first}-{last}" for first, last, _ in rows]
    width = max(map(len, names))
    return [f"{name:{width}}  {text}" for name, (_, _, text) in zip(names, rows, strict=True)]


def picture(model: Model, path: Path) -> None:
    """Writes a PNG that shows, for each layer and head, the share of pairs that are seen, with queries downwards.
    Larger models are cut to their first layers and heads, longer sequences to their beginning."""
    layers, heads = _layers(model)[:_LAYERS], min(model.heads, _HEADS)
    figure = Figure(figsize=(1.1 * heads + 0.6, 1.1 * len(layers) + 0.8), layout="constrained")
    drawn: dict[Any, Shares] = {}
    for (layer, (causal, pattern)), row in zip(
        enumerate(layers), figure.subplots(len(layers), heads, squeeze=False), strict=True
    ):
        for head, axes in enumerate(row):
            length = min(_POSITIONS, model.sequence_length)
            seen = pattern.head(layer, head, None if causal else length)
            if (seen, causal) not in drawn:
                drawn[seen, causal] = _shares(seen, length, causal)
            axes.imshow(drawn[seen, causal], cmap="Blues", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if layer == 0:
                axes.set_title(f"head {head}", fontsize=8)
            if head == 0:
                axes.set_ylabel(f"layer {layer}", fontsize=8)
    figure.savefig(path, dpi=100)


def _layers(model: Model) -> list[tuple[bool, PatternSettings]]:
    """Whether each layer is causal, and its pattern."""
    encoder, decoder = model.stacks
    stacks = ((encoder, False), (decoder, True))
    return [(causal, model.attention.layer_pattern(layer)) for count, causal in stacks for layer in range(count)]


def _pattern_text(settings: dict[str, Any]) -> str:
    inner = [
        f"{key}={' | '.join(_pattern_text(one) if isinstance(one, dict) else one for one in value)}"
        if isinstance(value, list)
        else f"{key}={value}"
        for key, value in settings.items()
        if key != "name"
    ]
    return str(settings["name"]) + (f"({', '.join(inner)})" if inner else "")


def _shares(seen: Any, length: int, causal: bool) -> Shares:
    """Share of the pairs in each cell that are seen: [cells, cells]."""
    positions = np.arange(length)
    shown = np.broadcast_to(seen.attends(positions[:, None], positions), (length, length))
    if causal:
        shown = shown & np.tri(length, dtype=bool)
    cells = min(_CELLS, length)
    starts = np.arange(cells) * length // cells
    sizes = np.diff(np.append(starts, length))
    sums = np.add.reduceat(np.add.reduceat(shown.astype(np.float64), starts, 0), starts, 1)
    return np.asarray(sums / np.outer(sizes, sizes))
