"""The simulated allocator reserves what torch's rules say: c10/cuda/CUDACachingAllocator.cpp."""

import random
from itertools import pairwise

import pytest

from pretrain.rehearse.caching_allocator import CachingAllocator, MemoryBlock

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_segments_have_torchs_sizes(size: int, reserved: int) -> None:
    allocator = CachingAllocator(1e12)
    allocator.allocate(size)
    assert allocator.reserved_bytes == reserved


def test_small_blocks_share_a_segment_to_the_last_512_bytes() -> None:
    allocator = CachingAllocator(1e12)
    for _ in range(4096):
        allocator.allocate(100)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_a_rest_of_a_large_block_is_split_off_above_1_mib() -> None:
    allocator = CachingAllocator(1e12)
    blocks = [allocator.allocate(size) for size in (9 * MIB, 9 * MIB, 2 * MIB)]
    assert [block.size_bytes for block in blocks] == [9 * MIB, 9 * MIB, 2 * MIB]
    assert allocator.reserved_bytes == 20 * MIB
    allocator = CachingAllocator(1e12)
    blocks = [allocator.allocate(size) for size in (9 * MIB, 9 * MIB, MIB + 512)]
    assert blocks[-1].size_bytes == 2 * MIB  # a rest of less than 1 MiB stays part of it


def test_small_and_large_blocks_come_from_different_segments() -> None:
    allocator = CachingAllocator(1e12)
    allocator.release(allocator.allocate(8 * MIB))
    allocator.allocate(MIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_free_neighbours_become_one_block() -> None:
    for released, reserved in (((1, 2), 20 * MIB), ((0, 2), 30 * MIB), ((2, 1, 0), 20 * MIB)):
        allocator = CachingAllocator(1e12)
        blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
        for index in released:
            allocator.release(blocks[index])
        allocator.allocate(10 * MIB)
        assert allocator.reserved_bytes == reserved, released


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator(1e12)
    large, fitting, _ = (allocator.allocate(size) for size in (40 * MIB, 30 * MIB, 20 * MIB))
    allocator.release(large)
    allocator.release(fitting)
    assert allocator.allocate(29 * MIB).address == fitting.address


def test_a_full_device_gets_unused_segments_back_first() -> None:
    allocator = CachingAllocator(64 * MIB)
    allocator.release(allocator.allocate(30 * MIB))
    kept = allocator.allocate(12 * MIB)  # a part of the 30
    allocator.release(allocator.allocate(32 * MIB))
    allocator.allocate(34 * MIB)
    assert (allocator.reserved_bytes, allocator.retries) == (64 * MIB, 1)
    assert allocator.reserved_peak_bytes == 64 * MIB
    allocator.release(kept)
    allocator.return_segments()
    assert allocator.reserved_bytes == 34 * MIB


def test_blocks_never_overlap_and_all_memory_returns() -> None:
    choose, allocator = random.Random(0), CachingAllocator(1e12)
    live: list[MemoryBlock] = []
    for _ in range(3000):
        if live and choose.random() < 0.48:
            allocator.release(live.pop(choose.randrange(len(live))))
        else:
            size = choose.choice((300, 5 * KIB, 700 * KIB, 3 * MIB, 9 * MIB, 33 * MIB))
            live.append(allocator.allocate(choose.randint(1, size)))
        spans = sorted((block.address, block.address + block.size_bytes) for block in live)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert sum(end - begin for begin, end in spans) <= allocator.reserved_bytes
    for block in live:
        allocator.release(block)
    allocator.return_segments()
    assert allocator.reserved_bytes == 0
