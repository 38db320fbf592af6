"""Headers before a member's tokens in its shard: where each document came from, and where each begins.

Read by the manifest's offsets. Nothing is extracted, names in the tar lead nowhere, and headers are parsed one block at
a time: a damaged or malicious tar can't make a reader seek, loop or allocate.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.shard import TAR_BLOCK_BYTES, Member
from data_pipeline.dataset.shard_writer import npy_vector
from data_pipeline.errors import DataError


def read_starts(head: bytes, member: Member, shard: str) -> NDArray[np.int64]:
    """[documents] token of the member that each of its documents begins with. Raises DataError naming `shard`."""
    _, starts = _files(head, shard)
    try:
        found = npy_vector(starts)
    except ValueError as error:
        raise _damaged(shard, f"the starts of documents can't be read, {error}") from error
    if not found.size or found[0] != 0 or (np.diff(found) <= 0).any() or found[-1] >= member.tokens:
        raise _damaged(shard, "documents begin outside their member")
    return found


def read_records(head: bytes, shard: str) -> list[dict[str, Any]]:
    """Where each document came from: source, index, bytes, words. Raises DataError naming `shard`."""
    documents, _ = _files(head, shard)
    try:
        records = json.loads(documents)
    except (ValueError, RecursionError) as error:
        raise _damaged(shard, f"the records of documents can't be read, {error}") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise _damaged(shard, "the records of documents are no list")
    return records


def _files(head: bytes, shard: str) -> tuple[bytes, bytes]:
    """(documents.json, starts.npy)"""
    files = _walk(head)
    try:
        (first, documents), (second, starts) = next(files), next(files)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise _damaged(shard, f"a header of the tar can't be read, {error}") from error
    if not first.endswith(".documents.json") or not second.endswith(".starts.npy"):
        raise _damaged(shard, "other files than those of a dataset are in it")
    return documents, starts


def _walk(head: bytes) -> Iterator[tuple[str, bytes]]:
    offset = 0
    while True:
        entry = tarfile.TarInfo.frombuf(head[offset : offset + TAR_BLOCK_BYTES], "utf-8", "surrogateescape")
        begin = offset + TAR_BLOCK_BYTES
        if not entry.isreg() or not 0 <= entry.size <= len(head) - begin:
            raise ValueError("an entry is no file or ends beyond its place")
        yield entry.name, head[begin : begin + entry.size]
        offset = begin - (-entry.size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES


def _damaged(shard: str, what: str) -> DataError:
    return DataError(f"{shard} is damaged: {what}; copy it again, or build the dataset again.")
