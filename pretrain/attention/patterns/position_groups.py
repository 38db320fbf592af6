"""Groups of positions of a sequence, and reading and writing a tensor there: as a view where positions are evenly
spaced, so that neither overlapping windows nor every n-th position are copied."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretrain.attention.device_copies import DeviceCopies

Positions = np.ndarray[Any, np.dtype[np.int64]]


class PositionGroups:
    """Positions [G, Q]; of tensors [S, N, D], N rows times heads."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        groups, size = positions.shape
        self.shape: tuple[int, int] = (groups, size)
        self._flat = DeviceCopies(positions.reshape(-1))

    def on(self, device: torch.device) -> Tensor:
        """[G * Q]"""
        return self._flat.on(device)

    def read(self, x_SND: Tensor) -> Tensor:
        """[G, N, Q, D], a view where it can be one."""
        if self._even is not None:
            return self._view(x_SND, *self.shape)
        return x_SND.index_select(0, self.on(x_SND.device)).view(*self.shape, *x_SND.shape[1:]).transpose(1, 2)

    def write(self, x_SND: Tensor, values_GNQD: Tensor) -> None:
        """Writes values of positions that occur once."""
        if self._even is not None:
            self.read(x_SND).copy_(values_GNQD)
        else:
            x_SND[self.on(x_SND.device)] = values_GNQD.transpose(1, 2).flatten(0, 1)

    def add(self, x_SND: Tensor, values_GNQD: Tensor) -> None:
        """Adds values; those of a position that occurs several times are summed."""
        if self._even is None:
            x_SND.index_add_(0, self.on(x_SND.device), values_GNQD.transpose(1, 2).flatten(0, 1).to(x_SND.dtype))
            return
        groups, size = self.shape
        _, between, step = self._even
        piece = between if step == 1 and groups > 1 else size  # no two groups have such a piece in common
        for begin in range(0, size, piece):
            end = min(begin + piece, size)
            self._view(x_SND, groups, end - begin, begin).add_(values_GNQD[:, :, begin:end])

    @cached_property
    def _even(self) -> tuple[int, int, int] | None:
        """(first, step between groups, step within a group) if positions are evenly spaced and repeat only where
        contiguous windows overlap; None otherwise."""
        p = self.positions
        first, (groups, size) = int(p[0, 0]), self.shape
        between, step = (int(p[1, 0]) - first if groups > 1 else 1), (int(p[0, 1]) - first if size > 1 else 1)
        if between < 1 or step < 1 or not (step == 1 or groups == 1 or groups * between <= step):
            return None
        even = first + between * np.arange(groups)[:, None] + step * np.arange(size)
        return (first, between, step) if np.array_equal(p, even) else None

    def _view(self, x_SND: Tensor, groups: int, size: int, begin: int = 0) -> Tensor:
        """[G, N, size, D]: positions from index `begin` of each group on."""
        assert self._even is not None
        first, between, step = self._even
        along, row, element = x_SND.stride()
        offset = x_SND.storage_offset() + (first + begin * step) * along
        shape = groups, x_SND.shape[1], size, x_SND.shape[2]
        return x_SND.as_strided(shape, (between * along, row, step * along, element), offset)
