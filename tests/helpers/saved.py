"""How many bytes of activations and score masks are held for the backward pass."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import finalize

import torch
from torch import Tensor

from pretrain.attention.score_masks import ScoreMask


class SavedBytes:
    """Bytes of the storages that are saved for some backward pass, each once: now, and at most so far."""

    def __init__(self, besides: Iterable[Tensor]) -> None:
        self.now = self.peak = 0
        besides = list(besides)
        self._besides = {tensor.untyped_storage().data_ptr() for tensor in besides}
        # What ZeRO's third stage gathers is let go of by DeepSpeed, and kept by nothing but this count.
        self._gathered = {tuple(tensor.ds_shape) for tensor in besides if hasattr(tensor, "ds_shape")}
        self._uses: dict[int, int] = {}

    def hold(self, place: int, size: int) -> None:
        self._uses[place] = self._uses.get(place, 0) + 1
        if self._uses[place] == 1:
            self.now += size
            self.peak = max(self.peak, self.now)

    def release(self, place: int, size: int) -> None:
        self._uses[place] -= 1
        if not self._uses[place]:
            del self._uses[place]
            self.now -= size

    def pack(self, tensor: Tensor) -> Any:
        place = tensor.untyped_storage().data_ptr()
        weight = place in self._besides or tuple(tensor.shape) in self._gathered
        return tensor if weight else _Held(tensor.detach(), self)


class _Held:
    """A saved tensor, for as long as autograd wants it."""

    def __init__(self, tensor: Tensor, saved: SavedBytes) -> None:
        self.tensor, self._saved = tensor, saved
        storage = tensor.untyped_storage()
        self._storage = storage.data_ptr(), storage.nbytes()
        saved.hold(*self._storage)

    def __del__(self) -> None:
        self._saved.release(*self._storage)


@contextmanager
def counted(besides: Iterable[Tensor]) -> Iterator[SavedBytes]:
    """What is saved inside, and masks that layers share, which micro-batches hold from their first use on; `besides`:
    weights, which are there anyway."""
    saved = SavedBytes(besides)
    make = ScoreMask.__init__

    def make_counted(mask: ScoreMask, tensor: Tensor) -> None:
        make(mask, tensor)
        storage = tensor.untyped_storage()
        saved.hold(storage.data_ptr(), storage.nbytes())
        finalize(mask, saved.release, storage.data_ptr(), storage.nbytes())

    def unpack(held: Any) -> Tensor:
        tensor: Tensor = held.tensor if isinstance(held, _Held) else held
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(saved.pack, unpack),
        patch.object(ScoreMask, "__init__", make_counted),
    ):
        yield saved
