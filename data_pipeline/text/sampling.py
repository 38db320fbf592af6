"""An even choice among documents that lie in many files: found in tasks of bounded memory, each reading some files.

Chance gives each different text a number, by its hash; chosen are those of the least numbers, so neither order nor
files matter. A task keeps as many as its share of the bytes makes likely to be enough, and some. `bound` then says
below which number the choice lies, and a task that kept too few reads once more.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import StringTable, read_array_copies, read_arrays, save_arrays
from data_pipeline.common.hashing import mix64
from data_pipeline.reading.documents import Document

_MARGIN, _LEAST = 4, 64  # times the share, and besides, that a task keeps


def chance(keys: Sequence[int], purpose: str) -> NDArray[np.uint64]:
    """[keys] 64 bits for each document key, of their own for every `purpose`."""
    salt = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "big")
    return mix64(np.array(keys, np.uint64) ^ np.uint64(salt))


def choose(documents: Iterable[Document], most: int, seed: int) -> dict[int, str]:
    """Key and text of the `most` different documents that chance puts first, in its order."""
    worst_first: list[tuple[int, int]] = []
    texts: dict[int, str] = {}
    for document in documents:
        key = document.key
        if key in texts:
            continue
        rank = (-int(chance([key], f"train/{seed}")[0]), key)
        if len(texts) < most:
            heapq.heappush(worst_first, rank)
        elif rank > worst_first[0]:
            del texts[heapq.heappushpop(worst_first, rank)[1]]
        else:
            continue
        texts[key] = document.text
    return {key: texts[key] for _, key in sorted(worst_first, reverse=True)}


def quota(most: int, size: int, total: int) -> int:
    """Number of documents that the reader of `size` of `total` bytes keeps, for `most` in all."""
    return min(most, _LEAST + _MARGIN * most * size // max(1, total))


def sample(documents: Iterable[Document], most: int, seed: int, path: Path) -> None:
    """Task: keeps the first `most` of some documents."""
    chosen = choose(documents, most, seed)
    StringTable.write(_texts(path), list(chosen.values()))
    save_arrays(path, chance(list(chosen), f"train/{seed}"), np.array([len(chosen) == most], np.uint8))


def bound(samples: Sequence[Path], most: int, path: Path) -> None:
    """Task: the number at or below which the first `most` different documents of all lie."""
    found = np.unique(np.concatenate([next(read_array_copies(one)) for one in samples]))
    save_arrays(path, found[:most][-1:] if len(found) >= most else np.array([2**64 - 1], np.uint64))


def falls_short(path: Path, of_all: Path) -> bool:
    """Whether a sample may lack a document that belongs to the choice, by the `bound` of all samples."""
    numbers, full = read_arrays(path)
    return bool(full[0]) and bool(numbers[-1] < next(read_arrays(of_all))[0])


def sampled(path: Path) -> Iterator[Document]:
    """The documents of a sample."""
    texts = StringTable(_texts(path))
    for number in range(len(next(read_arrays(path)))):
        yield Document((texts[number],), "", number)


def _texts(path: Path) -> Path:
    return path.with_name(f"{path.name}-texts")
