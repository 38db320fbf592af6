"""The micro-batches of a training step."""

from data_pipeline.batch import Rows
from data_pipeline.lengths import by_length
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.micro_batches import Cutter
from pretrain.engine.megatron.padding import PaddingTrimmer
from pretrain.layout.layout import Layout
from pretrain.model_spec.mtp import mtp_depths
from pretrain.models.inputs import MicroBatch
from pretrain.random import dropout
from pretrain.run_length.ramp import micro_sequences


class StepCutter:
    """Cuts the rows of a data rank for one step, without padding that no row needs."""

    def __init__(self, config: RunConfig, layout: Layout, cutter: Cutter, trimmer: PaddingTrimmer) -> None:
        self._batch, self._layout, self._cutter, self._trimmer = config.batch, layout, cutter, trimmer
        self._further = len(mtp_depths(config.model))

    def cut(self, batch: Rows, first_row: int) -> list[MicroBatch]:
        """Rows of like lengths together, each micro-batch cut to its longest row; or in a pipeline, whose stages
        exchange tensors of one shape, all to the longest row of this data rank. Dropout numbers rows from
        `first_row`."""
        group = self._layout.pipeline if self._layout.virtual > 1 else 1
        micro = micro_sequences(self._batch, len(batch.tokens), group)
        if self._layout.pipeline > 1 or not self._trimmer.enabled:
            dropout.number_rows({})
            rows = self._trimmer.trim(batch) if self._trimmer.enabled else batch
            return self._cutter.cut(rows, micro, first_row, self._further)
        order = by_length(batch)
        parts = [order[n : n + micro] for n in range(0, len(order), micro)]
        trimmed = [(rows, self._trimmer.trim(batch[rows])) for rows in parts]
        micro_batches = self._cutter.cut_each(trimmed, first_row, self._further)
        dropout.number_rows({x.first_row: x.row_offsets_B for x in micro_batches if x.row_offsets_B is not None})
        return micro_batches
