"""Arrays in a file, one after the other, read through a memory map: the format of large facts about documents.

A header of 32 bytes precedes each: its dtype as numpy writes it, its number of axes (one or two), and their lengths.
numpy's own header holds the same, as text that takes a hundred times as long to read, and there are many small files.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.atomic import atomic_path

Positions = NDArray[np.int64]
"""Indices of documents (or of other items) among all of them, from 0."""
Item = TypeVar("Item")
_HEADER = struct.Struct("<8sqqq")


def append_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Writes `array`, of one or two axes, at the end of an open file."""
    array = np.ascontiguousarray(array)
    first, second = (*array.shape, 1)[:2]
    file.write(_HEADER.pack(array.dtype.str.encode(), array.ndim, first, second))
    file.write(array.data)
    file.write(bytes(-array.nbytes % 8))  # aligns what follows


def read_arrays(path: Path) -> Iterator[NDArray[Any]]:
    """Yields the arrays of a file that `append_array` wrote, read-only. Each has its own memory map, so that dropping
    it frees its pages."""
    file = os.open(path, os.O_RDONLY)
    try:
        size, offset = os.fstat(file).st_size, 0
        while offset < size:
            name, axes, first, second = _HEADER.unpack(os.pread(file, _HEADER.size, offset))
            if first < 0 or second < 0:
                raise ValueError(f"{path} holds no arrays")
            dtype = np.dtype(name.rstrip(b"\0").decode())
            shape, count = ((first,), first) if axes == 1 else ((first, second), first * second)
            offset += _HEADER.size
            if count:
                before = offset % mmap.ALLOCATIONGRANULARITY
                mapped = mmap.mmap(
                    file, before + count * dtype.itemsize, offset=offset - before, access=mmap.ACCESS_READ
                )
                yield np.frombuffer(mapped, dtype, count, before).reshape(shape)
                del mapped
            else:  # an empty array can't be mapped
                yield np.zeros(shape, dtype)
            offset += count * dtype.itemsize
            offset += -offset % 8
    finally:
        os.close(file)


def read_array_copies(path: Path) -> Iterator[NDArray[Any]]:
    """The arrays of a file as copies in memory, for callers that hold arrays of many files: a map keeps its file
    open."""
    return (array.copy() for array in read_arrays(path))


def save_arrays(path: Path, *arrays: NDArray[Any]) -> None:
    """Writes a file of these arrays, which appears only when complete."""
    with atomic_path(path) as scratch, scratch.open("wb") as file:
        for array in arrays:
            append_array(file, array)


class StringTable:
    """Strings in a file, such as file names, with random access by index."""

    def __init__(self, path: Path) -> None:
        """Opens a file that `write` wrote."""
        self._borders, self._bytes = read_arrays(path)

    @staticmethod
    def write(path: Path, texts: Sequence[str]) -> None:
        """Writes the file, which appears only when complete."""
        encoded = [os.fsencode(text) for text in texts]
        borders = np.concatenate([[0], np.cumsum([len(text) for text in encoded], dtype=np.int64)])
        save_arrays(path, borders.astype(np.int64), np.frombuffer(b"".join(encoded), np.uint8))

    def __getitem__(self, number: int) -> str:
        begin, end = self._borders[number : number + 2].tolist()
        return os.fsdecode(self._bytes[begin:end].tobytes())


def unique_pairs(first: Positions, second: Positions) -> NDArray[np.int64]:
    """[2, pairs] the pairs without duplicates, sorted by the second of each, then by the first."""
    order = np.lexsort((first, second))
    pairs = np.stack([first[order], second[order]])
    new = np.ones(len(order), bool)
    new[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
    return pairs[:, new]


def slices(array: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    """Slices of at most `size` along the last axis."""
    for begin in range(0, array.shape[-1], size):
        yield array[..., begin : begin + size]


def batched(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Slices of at most `size` items: itertools.batched, which Python has from 3.12 on."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
