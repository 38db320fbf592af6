"""Check that the tensors of a checkpoint are finite."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pretrain.engine.base import GlobalPart
from pretrain.engine.collective import gather


def not_finite(state: Mapping[str, GlobalPart]) -> str | None:
    """Name of a tensor of `state` that holds a value which is not finite, on any rank; None: all values are finite.
    Reads each value once. Collective."""
    local = next(
        (name for name, part in state.items() if not all(is_finite(piece.value) for piece in part.pieces)), None
    )
    return next((name for name in gather(local) if name is not None), None)


def is_finite(value: Tensor) -> bool:
    """Whether all elements of `value` are finite."""
    # The least and the largest are NaN if any value is.
    return not value.numel() or all(bool(bound.isfinite()) for bound in torch.aminmax(value))
