"""What a model is called with: one micro-batch, as this rank reads it."""

from dataclasses import dataclass

import torch
from torch import Tensor


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
    documents_BS: Tensor | None = None
    targets_BL: Tensor | None = None
    label_positions_BL: Tensor | None = None
    first_row: int = 0
    """the number that dropout knows it by: see pretrain/random/dropout.py"""


def positions_within(documents_BS: Tensor) -> Tensor:
    """The number of each position within its document, or within the padding at the end of its row."""
    places = torch.arange(documents_BS.shape[1], device=documents_BS.device)
    begins = documents_BS.diff(dim=1, prepend=documents_BS[:, :1]) != 0
    return places - (begins * places).cummax(dim=1).values
