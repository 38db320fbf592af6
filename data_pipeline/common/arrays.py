"""Arrays in a file, one after the other, read through a memory map: what large facts about documents are kept in.

Each is written as numpy writes it (.npy), so a file of them is only read where it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
"""Numbers of documents (or of other items) among all of them, from 0."""


def append(file: IO[bytes], array: NDArray[Any]) -> None:
    """Writes `array` at the end of an open file."""
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)


def arrays_in(path: Path) -> Iterator[NDArray[Any]]:
    """The arrays of a file that `append` wrote, read-only. Each is mapped by itself, so that letting go of it frees the
    memory that its pages took."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            assert np.lib.format.read_magic(file) == (1, 0)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            assert not fortran
            begin, count = file.tell(), int(np.prod(shape))
            if count:
                yield np.memmap(path, dtype, "r", begin, shape).view(np.ndarray)
            else:  # which can't be mapped
                yield np.zeros(shape, dtype)
            file.seek(begin + count * dtype.itemsize)


def unique_pairs(first: Positions, second: Positions) -> NDArray[np.int64]:
    """[2, pairs] the pairs without repeats, sorted by the second of each, then the first."""
    order = np.lexsort((first, second))
    pairs = np.stack([first[order], second[order]])
    new = np.ones(len(order), bool)
    new[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
    return pairs[:, new]


def pieces(array: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    """Slices of at most `size` along the last axis."""
    for begin in range(0, array.shape[-1], size):
        yield array[..., begin : begin + size]
