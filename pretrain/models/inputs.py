"""What a model is called with: one micro-batch, as this rank reads it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MicroBatch:
    """Tensors on the engine's device; data_pipeline.batch.Rows says what they mean. B rows, S input positions, L
    positions with a label. Of both, this context rank's slice; but `visible` is of whole sequences."""

    tokens_BS: Tensor
    positions_BS: Tensor
    labels_BL: Tensor
    loss_mask_BL: Tensor
    decoder_tokens_BL: Tensor | None = None
    decoder_positions_BL: Tensor | None = None
    visible_BS: Tensor | None = None
    segments_BS: Tensor | None = None
    follows_B: Tensor | None = None
    follows_weight: float = 0.0
    """of each row's answer, when a token's label weighs 1"""
    first_row: int = 0
    """the number that dropout knows it by: see pretrain/dropout.py"""
