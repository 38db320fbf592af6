"""torch's caching allocator of CUDA memory, simulated: bytes that a sequence of allocations and releases reserves.

It rounds sizes up to 512 bytes and cuts blocks out of segments, which it takes from the driver and keeps: small blocks
(up to 1 MiB) and large ones out of different segments. A request takes the smallest free block that is large enough,
and splits it; free neighbours become one block. When the driver has no memory left, segments without a block in use
return to it. Rules and constants are those of c10/cuda/CUDACachingAllocator.cpp (round_size, get_allocation_size,
get_free_block, should_split, try_merge_blocks, release_cached_blocks) and c10/core/AllocatorConfig.h in torch 2.13 with
its defaults: no expandable segments, no limit to splits.

There is one stream here. On a GPU, a block that other streams use is free later, and memory for one is not used by
another.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

_ROUNDING = 512
_SMALL_BLOCK = 2**20
"""largest block that comes from a segment for small ones"""
_SMALL_SEGMENT, _LARGE_SEGMENT = 2 * 2**20, 20 * 2**20
_OWN_SEGMENT = 10 * 2**20
"""from this size on, a segment is only as large as the block, rounded up to `_SMALL_SEGMENT`"""


@dataclass(eq=False)
class MemoryBlock:
    """Memory of a segment that is in use, or free."""

    size_bytes: int
    address: int
    is_small: bool
    in_use: bool = False
    before: "MemoryBlock | None" = None
    after: "MemoryBlock | None" = None

    @property
    def is_segment(self) -> bool:
        return self.before is None and self.after is None


class CachingAllocator:
    """`limit_bytes`: memory of the device that it may reserve."""

    def __init__(self, limit_bytes: float) -> None:
        self._limit_bytes = limit_bytes
        self._free: dict[bool, list[tuple[int, int, MemoryBlock]]] = {True: [], False: []}
        """small and large blocks by size, then address"""
        self._next_address = 0
        self.reserved_bytes = self.reserved_peak_bytes = 0
        self.retries = 0
        """requests before which segments were returned, as the device was full"""

    def allocate(self, size_bytes: int) -> MemoryBlock:
        """A block of at least this size."""
        size = rounded(size_bytes)
        is_small = size <= _SMALL_BLOCK
        free = self._free[is_small]
        index = bisect_left(free, size, key=lambda entry: entry[0])
        block = free.pop(index)[2] if index < len(free) else self._new_segment(size, is_small)
        remaining = block.size_bytes - size
        if remaining >= _ROUNDING if is_small else remaining > _SMALL_BLOCK:
            rest = MemoryBlock(remaining, block.address + size, is_small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size_bytes = rest, size
            self._insert(rest)
        block.in_use = True
        return block

    def release(self, block: MemoryBlock) -> None:
        """Makes the block free, as one with free neighbours."""
        block.in_use = False
        before, after = block.before, block.after
        if before is not None and not before.in_use:
            self._remove(before)
            block.address, block.size_bytes = before.address, block.size_bytes + before.size_bytes
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and not after.in_use:
            self._remove(after)
            block.size_bytes += after.size_bytes
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._insert(block)

    def return_segments(self) -> None:
        """Returns segments without a block in use to the driver."""
        for is_small, free in self._free.items():
            self.reserved_bytes -= sum(size for size, _, block in free if block.is_segment)
            self._free[is_small] = [entry for entry in free if not entry[2].is_segment]

    def clear_peak(self) -> None:
        """Forgets the peak so far, but not what is reserved."""
        self.reserved_peak_bytes = self.reserved_bytes

    def _new_segment(self, size: int, is_small: bool) -> MemoryBlock:
        segment_bytes = _SMALL_SEGMENT if is_small else _LARGE_SEGMENT
        if size >= _OWN_SEGMENT:
            segment_bytes = -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        if self.reserved_bytes + segment_bytes > self._limit_bytes:
            self.retries += 1
            self.return_segments()
        self.reserved_bytes += segment_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        self._next_address += segment_bytes
        return MemoryBlock(segment_bytes, self._next_address - segment_bytes, is_small)

    def _insert(self, block: MemoryBlock) -> None:
        insort(self._free[block.is_small], (block.size_bytes, block.address, block), key=lambda entry: entry[:2])

    def _remove(self, block: MemoryBlock) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size_bytes, block.address), key=lambda entry: entry[:2])]


def rounded(size_bytes: int) -> int:
    """The size of the block for an allocation of this size."""
    return max(_ROUNDING, -(-size_bytes // _ROUNDING) * _ROUNDING)
