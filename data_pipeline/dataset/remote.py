"""A dataset at an address such as s3://bucket/dataset: its small files in the cache, its tokens fetched by member.

Whatever is fetched is compared with the manifest's digests before it is used or kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.manifest import MANIFEST, DatasetManifest, FileRecord, Split
from data_pipeline.dataset.records import LIMIT_BYTES, has_right_checksum
from data_pipeline.dataset.shard import Member, Shard
from data_pipeline.dataset.shard_table import ShardTable
from data_pipeline.dataset.storage import OtherBytesError, Storage
from data_pipeline.dataset.token_stream import TokenStream, not_of_vocabulary
from data_pipeline.errors import DataError

_THREADS = 8  # fetching threads of each split, in each process
_SMALL_FILE_BYTES = 2**30  # limit for a tokenizer or token counts


def fetch_directory(storage: Storage, cache: Cache) -> tuple[DatasetManifest, Path]:
    """The manifest, and a local folder that holds it, the tokenizer and the counts of tokens.

    The manifest is fetched each time, so that a rebuilt dataset is recognized as another one; the other files once.
    Raises DataError when a file can't be fetched or does not match the manifest.
    """
    content = storage.read_all(MANIFEST, LIMIT_BYTES, has_right_checksum)

    def checked(file: str, sha256: str) -> bytes:
        def intact(data: bytes) -> bool:
            return hashlib.sha256(data).hexdigest() == sha256

        data = storage.read_all(file, _SMALL_FILE_BYTES, intact)
        if not intact(data):
            raise OtherBytesError(storage.name(file))
        return data

    def fetched(table: FileRecord) -> Path:
        folder = cache.folder_of(table.sha256, {table.file: partial(checked, table.file, table.sha256)})
        return folder / table.file

    manifest = DatasetManifest.parse(content, storage.name(MANIFEST), fetched)
    for split in manifest.splits.values():
        table = ShardTable.of(split.shards)
        if len(table.digests) < len(table.offsets):
            raise DataError(
                f"{storage.name(MANIFEST)} has no checksums of members, since an older version wrote it; copy the "
                "dataset to a local directory, or build it again and upload it."
            )

    folder = cache.folder_of(
        hashlib.sha256(content).hexdigest(),
        {
            **{small.file: partial(checked, small.file, small.sha256) for small in manifest.small_files},
            MANIFEST: lambda: content,
        },
    )
    return manifest, folder


class RemoteTokens(TokenStream):
    """Tokens of remote shards: the members that a batch needs are fetched in parallel, through the cache."""

    def __init__(self, manifest: DatasetManifest, split: Split, storage: Storage, cache: Cache) -> None:
        super().__init__(manifest, split)
        self._storage, self._cache = storage, cache
        self._number = np.arange(len(self._ends)) - self._table.firsts[self._shard_of]
        """[members] index of each in its shard."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch")

    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """See `TokenStream`. Each member is looked up once, however many rows need it."""
        self._check_bounds(starts, length)
        out = np.empty((len(starts), length), np.int64)
        wanted: dict[int, list[tuple[int, int, int, int]]] = {}  # member -> (row, column, token, tokens) to copy
        first = np.searchsorted(self._ends, starts, side="right")
        for row, (start, member) in enumerate(zip(starts.tolist(), first.tolist(), strict=True)):
            column = 0
            while column < length:
                offset = start + column - int(self._begins[member])
                count = min(length - column, int(self._ends[member]) - start - column)
                wanted.setdefault(member, []).append((row, column, offset, count))
                column, member = column + count, member + 1

        def copy(member: int, tokens: NDArray[np.uint16 | np.uint32]) -> None:
            for row, column, offset, count in wanted[member]:
                out[row, column : column + count] = tokens[offset : offset + count]

        sizes = self._ends - self._begins
        self._cache.expect(sum(int(sizes[member]) for member in wanted) * self._itemsize)
        absent = []
        for member in wanted:
            if (tokens := self._kept(member)) is not None:
                copy(member, tokens)
            else:
                absent.append(member)
        list(self._pool.map(lambda member: copy(member, self._fetched(member)), absent))
        return out

    def heads(self, shard: int, members: Sequence[int]) -> Iterator[bytes]:
        """See `TokenStream`. Heads are fetched in parallel, through the cache."""
        record = self._split.shards[shard]

        def head(number: int) -> bytes:
            begin, end = record.head(number, self._itemsize)
            return bytes(self._piece(record, begin, end - begin, record.members[number].head_sha256, tokens=False))

        return self._pool.map(head, members)

    def _kept(self, member: int) -> NDArray[np.uint16 | np.uint32] | None:
        """A member's tokens when the cache has them."""
        record = self._member(member)[1]
        assert record.sha256 is not None
        found = self._cache.find(record.sha256, record.tokens * self._itemsize)
        return None if found is None else np.frombuffer(found, self._dtype)

    def _fetched(self, member: int) -> NDArray[np.uint16 | np.uint32]:
        """A member's tokens, fetched unless another process has just done so."""
        shard, record = self._member(member)
        size = record.tokens * self._itemsize
        return np.frombuffer(self._piece(shard, record.offset, size, record.sha256, tokens=True), self._dtype)

    def _member(self, member: int) -> tuple[Shard, Member]:
        shard = self._split.shards[self._shard_of[member]]
        return shard, shard.members[self._number[member]]

    def _piece(self, shard: Shard, begin: int, size: int, sha256: str | None, tokens: bool) -> bytes | memoryview:
        assert sha256 is not None  # fetch_directory checks it

        def fetch() -> bytes:
            try:
                data = self._storage.read(shard.file, begin, size, sha256)
            except OtherBytesError:
                self._storage.check_size(shard.file, shard.bytes)  # says more
                raise
            if tokens and np.frombuffer(data, self._dtype).max() >= self._vocabulary:
                raise not_of_vocabulary(self._storage.name(shard.file), self._vocabulary)
            return data

        return memoryview(self._cache.get(sha256, size, fetch))
