"""Rows without the padding that all of them end in: what a model need not compute."""

from math import lcm

from data_pipeline.batch import Axis, Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.needed_lengths import NeededLengths
from pretrain.layout.layout import Layout

GPU_MULTIPLE = 8
"""Positions of trimmed rows are a multiple of this on a GPU, for its matrix units."""


class PaddingTrimmer:
    """Cuts rows to the longest of them. All ranks of a model's replica read the same rows, so that they cut alike."""

    def __init__(self, config: RunConfig, layout: Layout, *, on_gpu: bool) -> None:
        self._needed = NeededLengths(config)
        self.enabled = self._needed.trims
        self._multiple = lcm(GPU_MULTIPLE if on_gpu else 1, layout.context * (layout.tensor if layout.sequence else 1))

    def trim(self, rows: Rows) -> Rows:
        """These rows with fewer positions: as many as the longest one has, rounded up."""
        if not self.enabled or rows.label_positions is not None:
            return rows
        widths = rows.tokens.shape[1], rows.labels.shape[1]
        inputs, labels = (
            self._rounded(int(lengths.max()), width)
            for lengths, width in zip(self._needed.row_lengths(rows), widths, strict=True)
        )
        kept: dict[Axis, slice] = {"rows": slice(None), "inputs": slice(inputs), "labels": slice(labels)}
        columns = {name: values[tuple(kept[axis] for axis in one.axes)] for name, one, values in rows.columns()}
        return Rows(**columns)

    def _rounded(self, length: int, width: int) -> int:
        return min(-(-max(length, 1) // self._multiple) * self._multiple, width)
