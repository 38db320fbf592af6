"""A rank's rows -> micro-batches on its device, of each row the positions that are this context rank's. What depends on
the rows' values is computed before they are moved, so that the host never waits for the device to read them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_pipeline.batch import Axis, Rows
from pretrain.attention.cases import KeyPlaces
from pretrain.attention.packed import PackedSegments, segments_of_documents, segments_of_padding_mask
from pretrain.config.model import Model
from pretrain.engine.groups import Groups
from pretrain.models.inputs import LabelledPlaces, MicroBatch, positions_within
from pretrain.models.mtp_tokens import MtpTokens, mtp_rows

_LETTERS: dict[Axis, str] = {"rows": "B", "inputs": "S", "labels": "L"}  # of a MicroBatch's fields


class Cutter:
    """Cuts rows for one rank. With context ranks, each holds a contiguous slice of the positions."""

    def __init__(
        self,
        groups: Groups,
        device: torch.device,
        model: Model,
        reads: Collection[str] = (),
    ) -> None:
        """`reads`: what else micro-batches say, see `StepPart.reads`."""
        self._rank, self._ranks, self._device = groups.context_rank, groups.context_world, device
        self._reads_places = model.adds_distance_scores and model.has_encoder
        self._finds_labelled, self._has_experts = "labelled" in reads, model.experts is not None
        self._stacks = [name for name, has in (("encoder", model.has_encoder), ("decoder", model.has_decoder)) if has]
        self._counts_positions, self._finds_real = "counted" in reads, "real" in reads
        self._splits_at_padding = model.has_encoder and model.attention.splits_at_padding

    def cut(self, batch: Rows, micro: int, first_row: int = 0, further: int = 0) -> list[MicroBatch]:
        """Micro-batches of `micro` rows, which dropout numbers from `first_row`. `further`: how many tokens behind the
        next one each position predicts."""
        inputs, labels = (self._local_positions(x.shape[1]) for x in (batch.tokens, batch.labels))
        local = {"rows": slice(None), "inputs": inputs, "labels": labels}
        columns: dict[str, Any] = {}
        for name, column, values in batch.columns():
            if name == "documents":  # of which a model reads the segments and the positions
                continue
            local_values = values if column.replicated else values[tuple(local[axis] for axis in column.axes)]
            columns[f"{name}_{''.join(_LETTERS[axis] for axis in column.axes)}"] = to_device(local_values, self._device)
        if batch.documents is not None and batch.positions is None:
            columns["positions_BS"] = to_device(positions_within(batch.documents)[:, inputs], self._device)
        if self._has_experts:
            columns["real_BS"] = to_device(real_positions(batch)[:, inputs], self._device)
        if self._finds_real and batch.documents is None and not (real_BK := real_positions(batch)).all():
            columns["real_BK"] = to_device(real_BK, self._device)
        counted = self._counted(batch, inputs, labels) if self._counts_positions else {}
        all_positions = self._places(batch, columns)
        of_further = self._further(batch, inputs, further) if further else {}
        micro_batches = []
        for start in range(0, len(batch.tokens), micro):
            rows = slice(start, start + micro)
            tensors = {name: values[rows] for name, values in columns.items()}
            masks = (None if values is None else values[rows] for values in (batch.attention_mask, batch.documents))
            packed, with_padding = self.segments(*masks)
            places = {name: values[rows] for name, values in all_positions.items()}
            labelled = self._labelled(batch.loss_mask[rows, labels]) if self._finds_labelled else None
            micro_batches.append(
                MicroBatch(
                    **{"positions_BS": self._positions(inputs, micro), **tensors},
                    decoder_positions_BL=None if batch.decoder_tokens is None else self._positions(labels, micro),
                    places=KeyPlaces(**places) if places else None,
                    packed=packed,
                    packed_with_padding=with_padding,
                    labelled=labelled,
                    mtp=MtpTokens(**{n: values[rows] for n, values in of_further.items()}) if further else None,
                    counted={stack: values[rows] for stack, values in counted.items()} if counted else None,
                    first_row=first_row + start,
                )
            )
        return micro_batches

    def cut_each(
        self, micro_batches: Sequence[tuple[np.ndarray, Rows]], first_row: int, further: int = 0
    ) -> list[MicroBatch]:
        """One micro-batch of each of these rows, of any lengths. Dropout knows them by their numbers, [rows] each,
        counted from `first_row`. `further`: see `cut`."""
        cut, start = list[MicroBatch](), 0
        for numbers, rows in micro_batches:
            (micro_batch,) = self.cut(rows, len(numbers), first_row + start, further)
            offsets = to_device(numbers - start, self._device)
            cut.append(replace(micro_batch, row_offsets_B=offsets))
            start += len(numbers)
        return cut

    def _further(self, batch: Rows, local: slice, depths: int) -> dict[str, Tensor]:
        """Fields of `MtpTokens` of all rows."""
        found = mtp_rows(batch, depths)
        columns = {
            "tokens_BDS": found.tokens_RDS,
            "given_BDS": found.given_RDS,
            "labels_BDS": found.labels_RDS,
            "loss_mask_BDS": found.loss_mask_RDS,
        }
        return {name: to_device(values[..., local], self._device) for name, values in columns.items()}

    def _places(self, batch: Rows, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Columns of all positions that attention reads, on the device; those that `columns` holds are not copied."""
        if not self._reads_places:
            return {}
        found = {}
        for name in ("positions", "segments", "order"):
            values = getattr(batch, name)
            if values is not None:
                whole = self._ranks == 1
                found[f"{name}_BK"] = columns[f"{name}_BS"] if whole else to_device(values, self._device)
        return found

    def _counted(self, batch: Rows, inputs: slice, labels: slice) -> dict[str, Tensor]:
        """Positions of each stack that are no padding, of this context rank's."""
        found = {}
        for stack in self._stacks:
            if stack == "decoder":
                counted = _up_to_last_loss(batch) if "encoder" in self._stacks else real_positions(batch)
            elif batch.attention_mask is not None:
                counted = batch.attention_mask.astype(bool)
            else:
                counted = np.ones(batch.tokens.shape, bool) if batch.documents is None else batch.documents >= 0
            local = labels if stack == "decoder" and "encoder" in self._stacks else inputs
            found[stack] = to_device(counted[:, local], self._device)
        return found

    def segments(
        self, shown_BS: np.ndarray | None, documents_BS: np.ndarray | None = None
    ) -> tuple[PackedSegments | None, bool]:
        """The segments in which attention computes these rows (None: it doesn't split them), and whether some contain
        padding. `shown_BS`: positions that are not padding."""
        if shown_BS is not None and self._splits_at_padding:
            return segments_of_padding_mask(shown_BS)
        return (None if documents_BS is None else segments_of_documents(documents_BS)), False

    def _labelled(self, loss_mask_BL: np.ndarray) -> LabelledPlaces:
        positions_N, rows_N = (loss_mask_BL.T > 0).nonzero()
        return LabelledPlaces(positions_N, *(to_device(places, self._device) for places in (positions_N, rows_N)))

    def _local_positions(self, length: int) -> slice:
        """This context rank's of `length` positions."""
        count = length // self._ranks
        return slice(self._rank * count, (self._rank + 1) * count)

    def _positions(self, local: slice, rows: int) -> Tensor:
        return torch.arange(local.start, local.stop, device=self._device).expand(rows, -1)


def rows_of(batch: MicroBatch, first_row: int) -> np.ndarray:
    """[B] the rows of a micro-batch among those that it was cut from, which dropout numbers from `first_row`."""
    count = len(batch.tokens_BS)
    offsets = np.arange(count) if batch.row_offsets_B is None else batch.row_offsets_B.cpu().numpy()
    rows: np.ndarray = batch.first_row - first_row + offsets
    return rows


def real_positions(batch: Rows) -> np.ndarray:
    """[rows, S] bool: positions of a decoder's rows that are no padding. Without documents, a row ends with its last
    loss."""
    if batch.documents is not None:
        return batch.documents >= 0
    return _up_to_last_loss(batch)


def _up_to_last_loss(batch: Rows) -> np.ndarray:
    found: np.ndarray = np.cumsum(batch.loss_mask[:, ::-1] > 0, axis=1)[:, ::-1] > 0
    return found


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """An array as a tensor on `device`, copied from page-locked memory, so that the host does not wait for it. On a CPU
    it may share the array's memory."""
    if not values.flags.writeable:  # several batches share it, and torch knows nothing of arrays to read only
        values = values.copy()
    tensor = torch.as_tensor(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
