"""A dataset directory, opened for reading: tokens in place in the tars' bytes, and the documents that they came from.

`shards.py` writes what is read here.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.manifest import Manifest, Shard, Split, SplitName, file_sha256
from data_pipeline.tokenizer import Tokenizer


@dataclass(frozen=True)
class DocumentSpan:
    """A document, and the part of the stream that it fills."""

    record: dict[str, Any]
    """What was recorded of it: source (its file), index, bytes, words."""
    start: int
    """Its first token in the split's stream."""
    tokens: int
    """Its tokens, the end of text included."""


class Dataset:
    """A dataset directory, opened for reading. Safe to share between threads."""

    def __init__(self, directory: Path) -> None:
        """Checks that every file is there at its full size (`verify` reads them). Raises DataError naming one."""
        self.directory = directory
        self.manifest = Manifest.load(directory)
        for shard in self._all_shards():
            _check_size(directory / shard.file, shard.bytes)
        _check_size(directory / self.manifest.unigram.file, self.manifest.unigram.bytes)
        self._streams = {name: _TokenStream(self, split) for name, split in self.manifest.splits.items()}

    @property
    def identity(self) -> str:
        """Digest of tokenizer and tokens."""
        return self.manifest.identity

    def num_tokens(self, split: SplitName) -> int:
        """Tokens in the split's stream, ends of text included."""
        return self.manifest.splits[split].tokens

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made this dataset. Raises DataError when the file or the library isn't the same."""
        record = self.manifest.tokenizer
        tokenizer = Tokenizer.load(self.directory / record.file)
        if tokenizer.identity != record.identity:
            raise DataError(
                f"{self.directory / record.file} isn't the tokenizer that made this dataset (with {record.library} "
                f"{record.version}): put the file or that version back, or build the dataset again."
            )
        return tokenizer

    def unigram_counts(self) -> NDArray[np.int64]:
        """[vocabulary] how often each token occurs in the training split."""
        counts: NDArray[np.int64] = np.load(self.directory / self.manifest.unigram.file)
        return counts

    def read(self, split: SplitName, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[rows, length] tokens of the split's stream from `starts` [rows] on. Raises ValueError beyond its end."""
        return self._streams[split].read(starts, length)

    def window(self, split: SplitName, start: int, count: int) -> NDArray[np.int64]:
        """[count] tokens that begin at `start` in the split's stream. Raises ValueError beyond its end."""
        tokens: NDArray[np.int64] = self.read(split, np.array([start]), count)[0]
        return tokens

    def starts(self, split: SplitName) -> NDArray[np.int64]:
        """[documents] where each document begins in the split's stream, read from the tars."""
        found, begin = [np.empty(0, np.int64)], 0
        for shard in self.manifest.splits[split].shards:
            with tarfile.open(self.directory / shard.file) as tar:
                names = [name for name in tar.getnames() if name.endswith(".starts.npy")]
                for member, name in zip(shard.members, names, strict=True):
                    found.append(begin + np.load(io.BytesIO(_member(tar, name).read())))
                    begin += member.tokens
        return np.concatenate(found)

    def documents(self, split: SplitName) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """(record, tokens without the end of text) of each document in order; record: source, index, bytes, words."""
        start = 0
        for shard in self.manifest.splits[split].shards:
            with tarfile.open(self.directory / shard.file) as tar:
                names = iter(tar.getnames())
                for member, (documents_name, starts_name, _) in zip(
                    shard.members, zip(names, names, names, strict=True), strict=True
                ):
                    records = json.load(_member(tar, documents_name))
                    starts = np.load(io.BytesIO(_member(tar, starts_name).read()))
                    ends = [*starts[1:], member.tokens]
                    for record, begin, end in zip(records, starts, ends, strict=True):
                        yield record, self.window(split, start + int(begin), int(end - begin) - 1)
                    start += member.tokens

    def documents_at(self, split: SplitName, start: int, tokens: int) -> list[DocumentSpan]:
        """The documents that have any of the `tokens` tokens from `start` on in the split's stream, in order. Reads of
        the shards only what was recorded beside those tokens. Raises ValueError beyond the stream's end."""
        if tokens <= 0 or start < 0 or start + tokens > self.num_tokens(split):
            raise ValueError(
                f"tokens {start}..{start + tokens} lie outside the stream of {self.num_tokens(split)}, or are none."
            )
        found, begin = [], 0
        for shard in self.manifest.splits[split].shards:
            if begin < start + tokens and start < begin + shard.tokens:
                found += self._documents_in(shard, begin, start, start + tokens)
            begin += shard.tokens
        return found

    def _documents_in(self, shard: Shard, begin: int, first: int, end: int) -> list[DocumentSpan]:
        """Those of tokens first..end-1 of the stream that a shard holds, whose own begin at `begin`."""
        found: list[DocumentSpan] = []
        itemsize, written = np.dtype(self.manifest.dtype).itemsize, 0
        with (self.directory / shard.file).open("rb") as file:
            for member in shard.members:
                if begin < end and first < begin + member.tokens:
                    file.seek(written)  # where the member before ends
                    with tarfile.open(fileobj=file, mode="r:") as tar:
                        records = json.load(_next(tar, ".documents.json"))
                        starts = np.load(io.BytesIO(_next(tar, ".starts.npy").read())) + begin
                    ends = np.append(starts[1:], begin + member.tokens)
                    for n in np.flatnonzero((starts < end) & (first < ends)).tolist():
                        found.append(DocumentSpan(records[n], int(starts[n]), int(ends[n] - starts[n])))
                begin += member.tokens
                written = -(-(member.offset + member.tokens * itemsize) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return found

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Compare every byte with the manifest's digests. Raises DataError naming the first file that differs.

        Of several processes that verify together, each takes one of `shares` equal shares of the files.
        """
        files = [(shard.file, shard.sha256) for shard in self._all_shards()]
        files.append((self.manifest.tokenizer.file, self.manifest.tokenizer.sha256))
        files.append((self.manifest.unigram.file, self.manifest.unigram.sha256))
        for name, expected in files[share::shares]:
            if file_sha256(self.directory / name) != expected:
                raise DataError(
                    f"{self.directory / name} is damaged: its checksum isn't the manifest's; build it again."
                )

    def _all_shards(self) -> list[Shard]:
        return [shard for split in self.manifest.splits.values() for shard in split.shards]


class _TokenStream:
    """One split's members as one array of tokens that isn't in memory."""

    def __init__(self, dataset: Dataset, split: Split) -> None:
        itemsize = np.dtype(dataset.manifest.dtype).itemsize
        for shard in split.shards:
            ends = [member.offset + member.tokens * itemsize for member in shard.members]
            if any(end > shard.bytes or end % itemsize for end in ends):
                raise DataError(
                    f"The manifest of {dataset.directory} places tokens outside {shard.file}; build it again."
                )
        members = [(n, member) for n, shard in enumerate(split.shards) for member in shard.members]
        self._ends = np.cumsum([member.tokens for _, member in members], dtype=np.int64)
        self._begins = self._ends - np.array([member.tokens for _, member in members], np.int64)
        self._shard_of = np.array([n for n, _ in members], np.int64)
        self._first = np.array(
            [member.offset // itemsize for _, member in members], np.int64
        )  # token's place in its shard
        dtype = np.dtype(dataset.manifest.dtype).newbyteorder("<")
        self._maps = [np.memmap(dataset.directory / shard.file, dtype, mode="r") for shard in split.shards]
        self._tokens = split.tokens

    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        if starts.size and (starts.min() < 0 or starts.max() + length > self._tokens):
            raise ValueError(
                f"tokens {starts.min()}..{starts.max() + length} lie outside the stream of {self._tokens}."
            )
        out = np.empty((len(starts), length), np.int64)
        if not out.size:
            return out
        member = np.searchsorted(self._ends, starts, side="right")
        inside = starts + length <= self._ends[member]
        shard = np.where(inside, self._shard_of[member], -1)
        places = starts - self._begins[member] + self._first[member]
        for n in np.unique(shard[inside]):
            rows = np.flatnonzero(shard == n)
            out[rows] = np.lib.stride_tricks.sliding_window_view(self._maps[n], length)[places[rows]]
        for row in np.flatnonzero(~inside):
            out[row] = self._across(int(starts[row]), length)
        return out

    def _across(self, start: int, count: int) -> NDArray[Any]:
        """A stretch that begins in one member and ends in another."""
        pieces, member = [], int(np.searchsorted(self._ends, start, side="right"))
        while count:
            taken = min(count, int(self._ends[member]) - start)
            place = start - int(self._begins[member]) + int(self._first[member])
            pieces.append(self._maps[self._shard_of[member]][place : place + taken])
            start, count, member = start + taken, count - taken, member + 1
        return np.concatenate(pieces)


def _member(tar: tarfile.TarFile, name: str | tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(name)
    assert file is not None
    return file


def _next(tar: tarfile.TarFile, suffix: str) -> IO[bytes]:
    """The file that comes next, whose name is known to end so."""
    info = tar.next()
    assert info is not None
    assert info.name.endswith(suffix), info.name
    return _member(tar, info)


def _check_size(path: Path, expected_bytes: int) -> None:
    if not path.is_file():
        raise DataError(f"{path} is missing; put it back, or remove {path.parent} and build it again.")
    if path.stat().st_size != expected_bytes:
        raise DataError(
            f"{path} has {path.stat().st_size:,} bytes, but was written with {expected_bytes:,}; copy it again, "
            f"or remove {path.parent} and build it again."
        )
