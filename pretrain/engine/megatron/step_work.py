"""Tokens and model FLOPs of a step, counted from its rows: the sums over data ranks are the same on every layout."""

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.lengths import text_lengths
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.needed_lengths import NeededLengths
from pretrain.model_spec.flops import TrainingFlops


class StepWork:
    """Counts rows of one run. In runs that cut the padding of rows, each counts up to its own end, whatever a layout
    computes of the padding behind it."""

    def __init__(self, config: RunConfig) -> None:
        self._needed, self._flops = NeededLengths(config), TrainingFlops(config.row_model)

    def row_work(self, rows: Rows) -> tuple[int, float]:
        """(positions of inputs, operations of the forward and backward pass)"""
        inputs, labels = self._needed.row_lengths(rows)
        texts = None if rows.documents is None else text_lengths(rows.documents)
        return int(np.sum(inputs)), self._flops.rows(inputs, labels, texts)
