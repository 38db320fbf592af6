"""Copies of a text within a split: where they lie in the stream.

The first document of a text lies at its key, a hash of the text. All others would lie beside it, so that a window of
tokens would hold a text and its copy. A copy lies at a hash of the text and of its number among the copies instead.
They are numbered in the order of the input, and the split of all of them follows from the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.hashing import mix64
from data_pipeline.reading.documents import HASH_BITS

_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # any odd number


def copy_numbers(keys: Sequence[NDArray[np.uint64]]) -> list[NDArray[np.int64]]:
    """[documents] of each part: which copy of its text each document is, from 0, counted over all parts in order. The
    keys of each part are sorted."""
    joined = np.concatenate(keys)
    order = np.argsort(joined, kind="stable")
    ordered = joined[order]
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    firsts = np.flatnonzero(new)
    numbers = np.empty(len(ordered), np.int64)
    numbers[order] = np.arange(len(ordered)) - np.repeat(firsts, np.diff(np.append(firsts, len(ordered))))
    return np.split(numbers, np.cumsum([len(part) for part in keys])[:-1])


def places_of_copies(
    keys: NDArray[np.uint64], numbers: NDArray[np.int64], least_key: int, end_key: int
) -> NDArray[np.uint64]:
    """[copies] in least_key <= place < end_key, the keys of their split. `numbers` begin at 1."""
    places = mix64(mix64(keys) + numbers.astype(np.uint64) * _STRIDE)
    span = end_key - least_key
    if span < 2**HASH_BITS:
        places = places % np.uint64(span)
    return places + np.uint64(least_key)
