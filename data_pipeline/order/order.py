"""A shuffle that is computed, not stored: a keyed permutation of 0..n-1 in O(1) memory, from any position.

A Feistel network permutes the smallest power of two that holds n; indices that land outside n are sent through
again until they land inside ("cycle walking"), which keeps it a bijection (Black and Rogaway 2002).
"""

from __future__ import annotations

import functools
import hashlib
from functools import partial

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.hashing import mix64

_ROUNDS = 6  # even, so that the two halves, which may differ by one bit, end in their own positions
_TABLE_BITS, _FEW = 28, 4  # tables of up to 2^14 answers, for at least a quarter as many questions
_MIN_BITS = 6  # narrower halves hold too few round functions to shuffle a handful of windows


def round_keys(seed: int, source: int, epoch: int) -> NDArray[np.uint64]:
    """[rounds] keys of the permutation that `source` uses in `epoch`."""
    digest = hashlib.blake2b(f"{seed}/{source}/{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8")


def permute(index: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where each of `index` (any shape, values in 0..size-1) goes in the permutation of 0..size-1 given by `keys`."""
    assert size > 0
    assert index.size == 0 or (index.min() >= 0 and index.max() < size)
    bits = max((size - 1).bit_length(), _MIN_BITS)
    # A round sees half of the bits, so it has few answers: if there is much to ask, looking them up takes a tenth.
    if bits <= _TABLE_BITS and _FEW * index.size >= 2 ** (bits // 2):
        once = partial(_looked_up, bits=bits, tables=_tables(bits, keys.tobytes()))
    else:
        once = partial(_computed, bits=bits, keys=keys)
    value = once(index.ravel())
    outside = np.flatnonzero(value >= size)
    while outside.size:
        value[outside] = once(value[outside])
        outside = outside[value[outside] >= size]
    return value.reshape(index.shape)


def permute_each(index: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Result of `permute` for each of `index` [n] alone, with its own of `sizes` [n] and of `keys` [rounds, n]."""
    assert index.size == 0 or (index.min() >= 0 and (index < sizes).all())
    assert sizes.size == 0 or sizes.max() < 2**53, "a float64 has the bits of each size"
    bits = np.maximum(np.frexp((sizes - 1).astype(np.float64))[1], _MIN_BITS).astype(np.uint64)
    value = _feistel(index.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(value >= sizes)
    while outside.size:
        value[outside] = _feistel(value[outside], bits[outside], keys[:, outside])
        outside = outside[value[outside] >= sizes[outside]]
    return value.astype(np.int64)


def _feistel(
    value: NDArray[np.uint64], bits: np.uint64 | NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """`bits` and each round's key are one for all values, or one for each."""
    low_bits = bits // np.uint64(2)
    high_bits = bits - low_bits
    high, low = value >> low_bits, value & _mask(low_bits)
    for key in keys:
        high, low = low, high ^ (mix64(low ^ key) & _mask(high_bits))
        high_bits, low_bits = low_bits, high_bits
    return (high << low_bits) | low


@functools.lru_cache(maxsize=32)
def _tables(bits: int, keys: bytes) -> tuple[NDArray[np.int32], ...]:
    """Tables of the values that each round of `_feistel` makes of each lower half."""
    low_bits, high_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    tables = []
    for key in np.frombuffer(keys, np.uint64):
        low = np.arange(2 ** int(low_bits), dtype=np.uint64)
        tables.append((mix64(low ^ key) & _mask(high_bits)).astype(np.int32))
        high_bits, low_bits = low_bits, high_bits
    return tuple(tables)


def _computed(value: NDArray[np.int64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return _feistel(value.astype(np.uint64), np.uint64(bits), keys).astype(np.int64)


def _looked_up(value: NDArray[np.int64], bits: int, tables: tuple[NDArray[np.int32], ...]) -> NDArray[np.int64]:
    """The result of `_computed`, looked up in `tables`."""
    low_bits = bits // 2  # that of the result too, as the rounds are even in number
    high, low = value >> low_bits, value & (2**low_bits - 1)
    for table in tables:
        high, low = low, high ^ table.take(low)
    joined: NDArray[np.int64] = (high << low_bits) | low
    return joined


def _mask(bits: np.uint64 | NDArray[np.uint64]) -> np.uint64 | NDArray[np.uint64]:
    return (np.uint64(1) << bits) - np.uint64(1)
