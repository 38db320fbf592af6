"""A rank's rows -> micro-batches on its device, of each row the positions that are this context rank's."""

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Axis, Rows
from pretrain.engine.groups import Groups
from pretrain.models.inputs import MicroBatch, positions_within

_LETTERS: dict[Axis, str] = {"rows": "B", "inputs": "S", "labels": "L"}  # of a MicroBatch's fields


class Cutter:
    """Cuts rows for one rank. With context ranks, each holds a contiguous slice of the positions."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        self._rank, self._ranks, self._device = groups.context_rank, groups.context_world, device

    def cut(self, batch: Rows, micro: int, first_row: int = 0) -> list[MicroBatch]:
        """Micro-batches of `micro` rows, which dropout numbers from `first_row`."""
        inputs, labels = (self._local_positions(x.shape[1]) for x in (batch.tokens, batch.labels))
        local = {"rows": slice(None), "inputs": inputs, "labels": labels}
        columns = {}
        for name, column, values in batch.columns():
            local_values = values if column.replicated else values[tuple(local[axis] for axis in column.axes)]
            columns[f"{name}_{''.join(_LETTERS[axis] for axis in column.axes)}"] = self._move(local_values)
        documents_BS = columns.get("documents_BS")
        if documents_BS is not None and "positions_BS" not in columns:
            columns["positions_BS"] = positions_within(documents_BS)[:, inputs]
        micro_batches = []
        for start in range(0, len(batch.tokens), micro):
            tensors = {name: values[start : start + micro] for name, values in columns.items()}
            micro_batches.append(
                MicroBatch(
                    **{"positions_BS": self._positions(inputs, micro), **tensors},
                    decoder_positions_BL=None if batch.decoder_tokens is None else self._positions(labels, micro),
                    first_row=first_row + start,
                )
            )
        return micro_batches

    def _local_positions(self, length: int) -> slice:
        """This context rank's of `length` positions."""
        count = length // self._ranks
        return slice(self._rank * count, (self._rank + 1) * count)

    def _positions(self, local: slice, rows: int) -> Tensor:
        return torch.arange(local.start, local.stop, device=self._device).expand(rows, -1)

    def _move(self, values: np.ndarray) -> Tensor:
        if not values.flags.writeable:  # several batches share it, and torch knows nothing of arrays to read only
            values = values.copy()
        tensor = torch.as_tensor(values)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)  # or the host would wait for the copy
