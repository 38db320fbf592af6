"""A rank's rows -> micro-batches on its device, of each row the positions that are this context rank's."""

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.engine.groups import Groups
from pretrain.models.inputs import MicroBatch, positions_within


class Cutter:
    """Cuts rows for one rank. With context ranks, each holds a contiguous slice of the positions."""

    def __init__(self, groups: Groups, device: torch.device) -> None:
        self._rank, self._ranks, self._device = groups.context_rank, groups.context_world, device

    def cut(
        self, batch: Rows, micro: int, first_row: int = 0, next_sentence_weight: float = 0.0
    ) -> list[MicroBatch]:  # fmt: skip
        """Micro-batches of `micro` rows, which dropout numbers from `first_row`."""
        inputs, labels = (self._own_positions(x.shape[1]) for x in (batch.tokens, batch.labels))
        found = []
        for start in range(0, len(batch.tokens), micro):
            cut = batch[slice(start, start + micro)]
            documents = self._move(cut.documents)
            found.append(
                MicroBatch(
                    tokens_BS=self._move(cut.tokens, inputs),
                    positions_BS=(
                        self._positions(inputs, micro) if documents is None else positions_within(documents)[:, inputs]
                    ),
                    labels_BL=self._move(cut.labels, labels),
                    loss_mask_BL=self._move(cut.loss_mask, labels),
                    decoder_tokens_BL=self._move(cut.decoder_tokens, labels),
                    decoder_positions_BL=None if cut.decoder_tokens is None else self._positions(labels, micro),
                    attention_mask_BS=self._move(cut.attention_mask),
                    segments_BS=self._move(cut.segments, inputs),
                    next_sentence_B=self._move(cut.next_sentence),
                    documents_BS=documents,
                    next_sentence_weight=next_sentence_weight,
                    first_row=first_row + start,
                )
            )
        return found

    def _own_positions(self, length: int) -> slice:
        """This context rank's of `length` positions."""
        count = length // self._ranks
        return slice(self._rank * count, (self._rank + 1) * count)

    def _positions(self, own: slice, rows: int) -> Tensor:
        return torch.arange(own.start, own.stop, device=self._device).expand(rows, -1)

    def _move(self, values: np.ndarray | None, columns: slice | None = None) -> Tensor | None:
        if values is None:
            return None
        if not values.flags.writeable:  # several batches share it, and torch knows nothing of arrays to read only
            values = values.copy()
        return torch.as_tensor(values if columns is None else values[:, columns], device=self._device)
