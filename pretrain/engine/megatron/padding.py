"""Rows without the padding that all of them end in: what a model need not compute."""

from math import lcm

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Axis, Rows
from data_pipeline.lengths import row_lengths
from pretrain.config.attention import Banded, Dense
from pretrain.config.patterns.linformer import Linformer
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout

GPU_MULTIPLE = 8
"""Positions of trimmed rows are a multiple of this on a GPU, for its matrix units."""


def trims_padding(config: RunConfig) -> bool:
    """Whether the losses of a run are the same, but for rounding, without the padding that rows end in: fp8 scales
    tensors by all of their values, a sparse attention pattern may count from the end of a row, and a model
    whose layers read fewer positions drops the last of these."""
    dense = all(isinstance(kind, Dense | Banded | Linformer) for kind in config.model.attention.kinds)
    return (
        config.objective.pads_to_longest and dense and config.precision != "fp8" and config.model.downsampling is None
    )


def needed_lengths(config: RunConfig, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions (of inputs, of labels) of each row that have an effect on what counts, [rows] each; all of them in runs
    that cut no padding."""
    model, loss = config.model, config.objective.loss
    if not trims_padding(config) or rows.label_positions is not None:
        count = len(rows.tokens)
        return np.full(count, rows.tokens.shape[1]), np.full(count, rows.labels.shape[1])
    visible, counted = row_lengths(rows)
    if loss in ("spans", "choice"):  # positions with a label compete, of which one counts
        width = rows.labels.shape[1]
        labelled = rows.labels != 0
        counted = np.maximum(counted, np.where(labelled.any(axis=1), width - labelled[:, ::-1].argmax(axis=1), 0))
    if model.is_encoder_decoder and model.task_head is None:
        return visible, counted
    # A decoder is not affected by what follows the last label, unless all positions compete for a span.
    after = rows.attention_mask is not None or not model.is_causal or loss == "spans"
    needed = np.maximum(counted, visible) if after else counted
    return needed, needed


class PaddingTrimmer:
    """Cuts rows to the longest of them. All ranks of a model's replica read the same rows, so that they cut alike."""

    def __init__(self, config: RunConfig, layout: Layout, *, on_gpu: bool) -> None:
        self._config, self.enabled = config, trims_padding(config)
        self._multiple = lcm(GPU_MULTIPLE if on_gpu else 1, layout.context * (layout.tensor if layout.sequence else 1))

    def trim(self, rows: Rows) -> Rows:
        """These rows with fewer positions: as many as the longest one has, rounded up."""
        if not self.enabled or rows.label_positions is not None:
            return rows
        widths = rows.tokens.shape[1], rows.labels.shape[1]
        inputs, labels = (
            self._rounded(int(lengths.max()), width)
            for lengths, width in zip(needed_lengths(self._config, rows), widths, strict=True)
        )
        kept: dict[Axis, slice] = {"rows": slice(None), "inputs": slice(inputs), "labels": slice(labels)}
        columns = {name: values[tuple(kept[axis] for axis in one.axes)] for name, one, values in rows.columns()}
        return Rows(**columns)

    def _rounded(self, length: int, width: int) -> int:
        return min(-(-max(length, 1) // self._multiple) * self._multiple, width)
