"""Memory of the device that tensors of a rank take, allocation by allocation until each is released."""

import weakref
from bisect import bisect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pretrain.rehearse.caching_allocator import CachingAllocator, MemoryBlock, rounded

_LAST = chr(0x10FFFF)
_SNAPSHOT_GROWTH = 1.002
"""growth of the peak after which what lives is noted again"""


@dataclass(frozen=True, kw_only=True)
class LiveMemory:
    """Memory of a device that tensors share."""

    size_bytes: int
    category: str
    """weights, gradients or optimizer; else the phase that allocated it"""
    operator: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    """module whose forward or backward pass allocated it"""
    line: str


class DeviceMemory:
    """Memory that lives on a device of `limit_bytes`, its peak, and the memory that the caching allocator reserves for
    it."""

    def __init__(self, limit_bytes: float) -> None:
        self.allocator = CachingAllocator(limit_bytes)
        self.live_bytes = 0
        self._live: dict[int, LiveMemory] = {}
        self._blocks: dict[int, MemoryBlock] = {}
        self._references: dict[int, Any] = {}
        self._names: dict[int, list[tuple[int, str]]] = {}
        """begin, in bytes, and name of what memory holds, in order"""
        self.clear("build")

    def clear(self, phase: str) -> None:
        """Forgets the peak so far, but not what lives."""
        self.peak_bytes, self.peak_phase = self.live_bytes, phase
        self.at_peak = list(self._live.values())
        self._noted_bytes = self.live_bytes
        self.phase_peaks: Counter[str] = Counter()

    def holds(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is known."""
        return tensor.untyped_storage()._cdata in self._live

    def add(self, tensor: Tensor, **description: str) -> None:
        """Counts the memory of a tensor until it is released. `description`: text fields of LiveMemory."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, rounded(storage.nbytes()) if storage.nbytes() else 0
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._live[key] = LiveMemory(size_bytes=size, shape=tuple(tensor.shape), dtype=dtype, **description)
        if size:
            self._blocks[key] = self.allocator.allocate(size)
        self._references[key] = weakref.ref(storage, self._releaser(key))
        self.live_bytes += size

    def note_peak(self, phase: str) -> None:
        """Compares what lives with the peak so far."""
        self.phase_peaks[phase] = max(self.phase_peaks[phase], self.live_bytes)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_phase = self.live_bytes, phase
            if self.live_bytes > self._noted_bytes * _SNAPSHOT_GROWTH:
                self._noted_bytes, self.at_peak = self.live_bytes, list(self._live.values())

    def classify(self, category: str, tensors: Iterable[Tensor]) -> None:
        """Names the category of memory that lives, also where it was noted at the peak."""
        named: dict[int, LiveMemory] = {}
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._live and self._live[key].category != category:
                before = self._live[key]
                named[id(before)] = self._live[key] = replace(before, category=category)
        if named:
            self.at_peak = [named.get(id(one), one) for one in self.at_peak]

    def name(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Names what memory that lives holds."""
        for name, tensor in pieces:
            key = tensor.untyped_storage()._cdata
            if key in self._live and tensor.numel():
                self._names.setdefault(key, []).append((_begin(tensor), name))
                self._names[key].sort()

    def names_in(self, tensor: Tensor) -> list[str]:
        """Names of what a tensor holds, in order."""
        return [name for _, name in self._contents(tensor)]

    def name_joined(self, joined: Tensor, parts: Iterable[Tensor]) -> None:
        """Names what a new tensor holds that was joined from `parts`."""
        begin, pieces = _begin(joined), []
        for part in parts:
            pieces += [(begin + offset, name) for offset, name in self._contents(part)]
            begin += _size(part)
        if pieces and self.holds(joined):
            self._names[joined.untyped_storage()._cdata] = pieces

    def _contents(self, tensor: Tensor) -> list[tuple[int, str]]:
        """Offset, in bytes, and name of each piece that a tensor holds. Of the first one, it may hold the end alone."""
        pieces = self._names.get(tensor.untyped_storage()._cdata, [])
        begin = _begin(tensor)
        first = max(0, bisect(pieces, (begin, _LAST)) - 1)
        last = bisect(pieces, (begin + _size(tensor) - 1, _LAST))
        return [
            (max(0, start - begin), f"{name} from byte {begin - start:,}" if start < begin else name)
            for start, name in pieces[first:last]
        ]

    def categories(self) -> Counter[str]:
        """Bytes of what lives, by category."""
        sizes: Counter[str] = Counter()
        for allocation in self._live.values():
            sizes[allocation.category] += allocation.size_bytes
        return sizes

    def _releaser(self, key: int) -> Any:
        def release(_: object) -> None:
            self._references.pop(key, None)
            self._names.pop(key, None)
            allocation, block = self._live.pop(key, None), self._blocks.pop(key, None)
            if allocation is not None:
                self.live_bytes -= allocation.size_bytes
            if block is not None:
                self.allocator.release(block)

        return release


def _begin(tensor: Tensor) -> int:
    return int(tensor.storage_offset() * tensor.element_size())


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
