"""The part of rows that has an effect on what counts: the rest is padding that a run may cut."""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.lengths import row_lengths
from pretrain.config.attention import Banded, Dense
from pretrain.config.run_config import RunConfig


def trims_padding(config: RunConfig) -> bool:
    """Whether the losses of a run are the same, but for rounding, without the padding that rows end in: fp8 scales
    tensors by all of their values, a sparse attention pattern may count from the end of a row, and a model
    whose layers read fewer positions drops the last of these."""
    dense = all(isinstance(kind, Dense | Banded) or kind.projects_keys for kind in config.model.attention.kinds)
    return (
        config.objective.pads_to_longest and dense and config.precision != "fp8" and config.model.downsampling is None
    )


class NeededLengths:
    """Numbers of positions of rows that have an effect on what counts, in one run."""

    def __init__(self, config: RunConfig) -> None:
        model, loss = config.model, config.objective.loss
        self.trims = trims_padding(config)
        self._has_two = model.is_encoder_decoder and model.task_head is None
        self._labels_compete = loss in ("spans", "choice")
        self._reads_behind = not model.is_causal or loss == "spans"
        """a decoder is not affected by what follows the last label, unless all positions compete for a span"""

    def row_lengths(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions (of inputs, of labels) of each row, [rows] each; all of them in runs that cut no padding."""
        if not self.trims or rows.label_positions is not None:
            count = len(rows.tokens)
            return np.full(count, rows.tokens.shape[1]), np.full(count, rows.labels.shape[1])
        visible, counted = row_lengths(rows)
        if self._labels_compete:  # of which one counts
            width = rows.labels.shape[1]
            labelled = rows.labels != 0
            counted = np.maximum(counted, np.where(labelled.any(axis=1), width - labelled[:, ::-1].argmax(axis=1), 0))
        if self._has_two:
            return visible, counted
        needed = np.maximum(counted, visible) if self._reads_behind or rows.attention_mask is not None else counted
        return needed, needed
