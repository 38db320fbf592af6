"""The facts that a chunk records about its items (documents, paragraphs) for deduplication: sorted runs of keys.

A run is as many keys as fit into memory, sorted, so those of a range lie together; a facts file is a row of runs. Items
of a run with equal keys are linked to the first of them right here, and only that one's key is kept. So however many
items are equal, no more of them than there are runs meet again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import append_array, read_arrays, unique_pairs

NO_SKETCH = 0


class SortedRun(NamedTuple):
    """One run of a facts file; items are numbered from 0 in their chunk."""

    covers: NDArray[np.int64]
    """[2] first item of the run, and the first after it."""
    keys: NDArray[np.uint64]
    """[columns, keys] sorted: key, whatever else must be equal for items to be linked at once, item."""
    links: NDArray[np.int64]
    """[2, links] first item with a key, other item with that key."""
    sketches: NDArray[np.uint8]
    """[items, bytes] to compare items by; [items, 0] where keys decide."""


def runs_in(facts: Path) -> Iterator[SortedRun]:
    """The runs of a facts file."""
    arrays = read_arrays(facts)
    while fields := list(itertools.islice(arrays, len(SortedRun._fields))):
        yield SortedRun(*fields)
        del fields  # the map of one run at a time, unless the caller holds on to it


class RunWriter:
    """Sorts keys into runs of about `keys_per_run`; memory: some 100 bytes per key."""

    def __init__(self, file: IO[bytes], columns: int, keys_per_run: int) -> None:
        self._file, self._columns, self._keys_per_run = file, columns, keys_per_run
        self._begin = self._end = self._size = 0
        self._keys: list[NDArray[np.uint64]] = []
        self._sketches: list[NDArray[np.uint8]] = []

    def add(self, items: int, keys: NDArray[np.uint64], sketches: NDArray[np.uint8] | None = None) -> None:
        """The next `items`: their keys, [columns, keys], last row the item counted from the first of these; sketches
        [items, bytes]."""
        keys[-1] += np.uint64(self._end)
        self._keys.append(keys)
        self._sketches.append(np.zeros((items, NO_SKETCH), np.uint8) if sketches is None else sketches)
        self._end += items
        self._size += keys.shape[1]
        if self._size >= self._keys_per_run:
            self.flush()

    def flush(self) -> None:
        """Ends a run. To be called at the end."""
        keys = np.concatenate([np.zeros((self._columns, 0), np.uint64), *self._keys], axis=1)
        keys = keys[:, np.lexsort(keys[-2::-1])]  # stable: items stay in order
        new = changes(*keys[:-1])
        items = keys[-1].astype(np.int64)
        links = unique_pairs(first_of_each(items, new)[~new], items[~new])
        append_array(self._file, np.array([self._begin, self._end]))
        append_array(self._file, keys[:, new])
        append_array(self._file, links)
        append_array(
            self._file, np.concatenate(self._sketches) if self._sketches else np.zeros((0, NO_SKETCH), np.uint8)
        )
        self._begin, self._size, self._keys, self._sketches = self._end, 0, [], []


def changes(*columns: NDArray[np.uint64] | NDArray[np.int64]) -> NDArray[np.bool_]:
    """[rows] whether a row differs from the one before it."""
    new = np.ones(len(columns[0]), bool)
    if len(new):
        new[1:] = False
        for column in columns:
            new[1:] |= column[1:] != column[:-1]
    return new


def first_of_each(values: NDArray[np.int64], new: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[rows] the value at the last row where `new` was."""
    firsts: NDArray[np.int64] = values[np.flatnonzero(new)[np.cumsum(new) - 1]]
    return firsts
