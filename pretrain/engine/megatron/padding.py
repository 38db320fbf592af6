"""Rows without the padding that all of them end in: what a model need not compute."""

from math import lcm

import numpy as np

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
    tensors by all of their values, and a sparse attention pattern may count from the end of a row."""
    dense = all(isinstance(kind, Dense | Banded | Linformer) for kind in config.model.attention.kinds)
    return config.objective.pads_to_longest and dense and config.precision != "fp8"


class PaddingTrimmer:
    """Cuts rows to the longest of them. All ranks of a model's replica read the same rows, so that they cut alike."""

    def __init__(self, config: RunConfig, layout: Layout, *, on_gpu: bool) -> None:
        loss = config.objective.loss
        self._model, self._spans, self._positions_compete = config.model, loss == "spans", loss in ("spans", "choice")
        self.enabled = trims_padding(config)
        self._multiple = lcm(GPU_MULTIPLE if on_gpu else 1, layout.context * (layout.tensor if layout.sequence else 1))

    def trim(self, rows: Rows) -> Rows:
        """These rows with fewer positions: as many as the longest one has, rounded up."""
        if not self.enabled or rows.label_positions is not None:
            return rows
        inputs, labels = self._lengths(rows)
        kept: dict[Axis, slice] = {"rows": slice(None), "inputs": slice(inputs), "labels": slice(labels)}
        columns = {name: values[tuple(kept[axis] for axis in one.axes)] for name, one, values in rows.columns()}
        return Rows(**columns)

    def _lengths(self, rows: Rows) -> tuple[int, int]:
        """Positions (of inputs, of labels) that have an effect on what counts."""
        width, label_width = rows.tokens.shape[1], rows.labels.shape[1]
        visible, counted = (int(lengths.max()) for lengths in row_lengths(rows))
        if self._positions_compete:  # those with a label, of which one counts
            (labelled,) = np.nonzero((rows.labels != 0).any(axis=0))
            counted = max([counted, *(labelled + 1).tolist()])
        if self._model.is_encoder_decoder and self._model.task_head is None:
            return self._rounded(visible, width), self._rounded(counted, label_width)
        # A decoder is not affected by what follows the last label, unless all positions compete for a span.
        needed = (
            counted
            if rows.attention_mask is None and self._model.is_causal and not self._spans
            else max(counted, visible)
        )
        return self._rounded(needed, width), self._rounded(needed, label_width)

    def _rounded(self, length: int, width: int) -> int:
        return min(-(-max(length, 1) // self._multiple) * self._multiple, width)
