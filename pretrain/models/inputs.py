"""Inputs of a model: one micro-batch, as this rank reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretrain.attention.cases import KeyPlaces
from pretrain.attention.packed import PackedSegments
from pretrain.models.last_states import LastAnswers, LastStates
from pretrain.models.mtp_tokens import MtpTokens
from pretrain.models.route_terms import MicroBatchRoutes


@dataclass(frozen=True)
class LabelledPlaces:
    """The places of a micro-batch that have a loss, in order of their positions, of which the host knows how many lie
    where: what a model makes of them has a shape without a look at the device."""

    positions_N: NDArray[np.int64]
    """position of each place, on the host"""
    position_N: Tensor
    row_N: Tensor

    def within(self, where: slice) -> tuple[Tensor, Tensor]:
        """(position from the begin of `where`, row) of the places whose positions lie in `where`."""
        first, last = np.searchsorted(self.positions_N, (where.start, where.stop))
        return self.position_N[first:last] - where.start, self.row_N[first:last]


class PreviousRows(Protocol):
    """See `segment_memory.RowsMemory`."""

    def exchange(self, layer: str, x_SBH: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Tensors on the engine's device: columns of data_pipeline.batch.Rows, which says what they mean, by its names. B
    rows, S input positions, L positions with a label; of both this context rank's slice, but for columns that are given
    whole."""

    tokens_BS: Tensor
    positions_BS: Tensor
    labels_BL: Tensor
    loss_mask_BL: Tensor
    decoder_tokens_BL: Tensor | None = None
    decoder_positions_BL: Tensor | None = None
    attention_mask_BS: Tensor | None = None
    segments_BS: Tensor | None = None
    next_sentence_B: Tensor | None = None
    targets_BL: Tensor | None = None
    next_tokens_BL: Tensor | None = None
    summed_BL: Tensor | None = None
    label_positions_BL: Tensor | None = None
    order_BS: Tensor | None = None
    before_B: Tensor | None = None
    source_B: Tensor | None = None
    memory: PreviousRows | None = None
    """hidden states of the rows before these, for layers that read them; None: none do"""
    real_BS: Tensor | None = None
    """bool: positions that are no padding, of a model with experts"""
    counted: Mapping[str, Tensor] | None = None
    """bool [B, S] or [B, L] of each stack, by its name: positions that are no padding, of a run that measures layers'
    outputs"""
    real_BK: Tensor | None = None
    """bool, over full sequences: positions that are no padding, of a run that keeps the largest attention scores; None:
    all are"""
    routes: MicroBatchRoutes | None = None
    """extra tasks of layers of experts: counts, and terms of the loss; None: they have none"""
    places: KeyPlaces | None = None
    """facts about all positions for attention; None: it doesn't ask, or there is nothing to say"""
    teacher: LastStates | LastAnswers | None = None
    """a teacher's results for the rows; on the last pipeline stage of a run that has one"""
    labelled: LabelledPlaces | None = None
    """the places with a loss, of a run with a generator"""
    noise_rows_B: Tensor | None = None
    """int64, of each row: what the noise of a generator's samples depends on besides positions and tokens; None: the
    row's number"""
    mtp: MtpTokens | None = None
    """further tokens that each position reads and predicts; None: it predicts the next one alone"""
    packed: PackedSegments | None = None
    """the documents of packed rows; in an encoder with sparse patterns each row up to its last position that is not
    padding; None: rows are not split"""
    packed_with_padding: bool = False
    """some segments contain padding"""
    first_row: int = 0
    """the number that dropout knows it by: see pretrain/random/dropout.py"""
    row_offsets_B: Tensor | None = None
    """int64: what to add to `first_row` for the number of each row; None: 0, 1, ..."""


def positions_within(documents_BS: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each position within its document, or within the padding at the end of its row."""
    positions = np.arange(documents_BS.shape[1])
    begins = np.diff(documents_BS, axis=1, prepend=documents_BS[:, :1]) != 0
    within: NDArray[np.int64] = positions - np.maximum.accumulate(begins * positions, axis=1)
    return within
