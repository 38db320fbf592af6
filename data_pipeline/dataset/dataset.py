"""A dataset, opened for reading: tokens in place in the tars' bytes, and the documents that they came from.

`shard_writer.py` writes what is read here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.hashing import file_sha256
from data_pipeline.common.open_files import raise_open_file_limit
from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.manifest import (
    DatasetManifest,
    FileRecord,
    SplitName,
    TokenizerRecord,
)
from data_pipeline.dataset.member_headers import read_records, read_starts
from data_pipeline.dataset.remote import RemoteTokens, fetch_directory
from data_pipeline.dataset.shard import Member, Shard
from data_pipeline.dataset.shard_table import ShardTable
from data_pipeline.dataset.shard_writer import npy_vector
from data_pipeline.dataset.storage import Storage, local_path
from data_pipeline.dataset.token_stream import LocalTokens, TokenStream
from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer

_EXCERPT_TOKENS = 64


@dataclass(frozen=True)
class DocumentSpan:
    """A document and its span of the stream."""

    record: dict[str, Any]
    """Its record: source (its file), index, part, bytes, words."""
    start: int
    """Its first token in the split's stream."""
    tokens: int
    """Its tokens, begin and end of text included."""


class Dataset:
    """A dataset, opened for reading. Safe to share between threads.

    `directory` holds the manifest, the tokenizer and the counts of tokens: the dataset's own, or copies in the cache.
    """

    def __init__(self, address: Path | str, cache: Cache | None = None, name: str | None = None) -> None:
        """`address` is a directory or an address that fsspec reads, such as s3://bucket/dataset or https://host/dataset;
        `cache` keeps fetched pieces (default: a cache in the user's cache directory). `name` is the dataset's name in a
        run (default: that of its folder).

        Checks that every file of a directory exists with its full size (`verify` reads them); fetched pieces are
        verified on arrival. Raises DataError naming a file.
        """
        self.address = str(address)
        self.name = name or Path(self.address).name
        path = local_path(address)
        self.remote = path is None
        """Whether its shards are remote."""
        if path is None:
            self._storage = Storage(self.address)
            cache = cache or Cache()
            self.manifest, self.directory = fetch_directory(self._storage, cache)
        else:
            self.manifest, self.directory = DatasetManifest.load(path), path
            raise_open_file_limit()  # shards are mapped
            states = _checked_shards(path, [ShardTable.of(split.shards) for split in self.manifest.splits.values()])
        _check_file(self.directory / self.manifest.unigram.file, self.manifest.unigram.bytes)
        self._streams: dict[SplitName, TokenStream] = {}
        for name, split in self.manifest.splits.items():
            if self.remote:
                assert cache is not None
                self._streams[name] = RemoteTokens(self.manifest, split, self._storage, cache)
            else:
                self._streams[name] = LocalTokens(self.manifest, split, self.directory, states)

    @property
    def identity(self) -> str:
        """Digest of the tokenizer and the tokens."""
        return self.manifest.identity

    @property
    def tokenizer_identity(self) -> str:
        """Digest of the tokenizer."""
        return self.manifest.tokenizer.identity

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer's file."""
        return self.directory / self.manifest.tokenizer.file

    @property
    def vocabulary_size(self) -> int:
        """Ids of the tokenizer."""
        return self.manifest.tokenizer.vocabulary

    def tokenizer_bytes(self) -> bytes:
        """The bytes of the tokenizer's file."""
        return self.tokenizer_path.read_bytes()

    def sizes(self) -> dict[str, int]:
        """Documents and tokens of each split."""
        splits = self.manifest.splits.items()
        documents = {f"{name}_documents": split.documents for name, split in splits}
        return documents | {f"{name}_tokens": split.tokens for name, split in splits}

    def num_tokens(self, split: SplitName) -> int:
        """Tokens in the split's stream, begins and ends of text included."""
        return self.manifest.splits[split].tokens

    def as_written(self, split: SplitName, spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """Spans [m, 3] (row, start, tokens) of the text that recipes read -> those of the stream as it was written:
        the same ones, but for text that is read in another way (`backward.py`, `without_begins.py`)."""
        return spans

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made this dataset. Raises DataError when the file or the library isn't the same."""
        record, path = self.manifest.tokenizer, self.tokenizer_path
        if path.exists():
            _check_file(path)
        same = not path.exists() or file_sha256(path) == record.sha256
        tokenizer = load_tokenizer(path) if same else None
        begin = self.manifest.begin_of_text
        if (
            tokenizer is None
            or tokenizer.identity != record.identity
            or begin not in (None, tokenizer.begin_of_text)  # None: the dataset was built without it
        ):
            raise DataError(
                f"{path} isn't the tokenizer that made this dataset (with {record.library} {record.version}): put the "
                "file or that version back, or build the dataset again."
            )
        return tokenizer

    def unigram_counts(self) -> NDArray[np.int64]:
        """[vocabulary] how often each token occurs in the training split. Raises DataError when the file is damaged."""
        path = self.directory / self.manifest.unigram.file
        try:
            counts = npy_vector(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be read ({error}); copy it again, or build the dataset again.") from error
        if len(counts) != self.manifest.tokenizer.vocabulary or file_sha256(path) != self.manifest.unigram.sha256:
            raise DataError(f"{path} isn't what the manifest says; copy it again, or build the dataset again.")
        return counts

    def report(self) -> dict[str, Any]:
        """Report of the build: what its steps saw, kept and dropped; empty where none was written. Raises DataError
        when the file is damaged."""
        if self.manifest.report is None:
            return {}
        path = self.directory / self.manifest.report.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} can't be read ({error}); copy it again, or build the dataset again.") from error
        if hashlib.sha256(content).hexdigest() != self.manifest.report.sha256:
            raise DataError(f"{path} isn't what the manifest says; copy it again, or build the dataset again.")
        report: dict[str, Any] = json.loads(content)
        return report

    def read(self, split: SplitName, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[rows, length] tokens of the split's stream from `starts` [rows] on. Raises ValueError beyond its end."""
        return self._streams[split].read(starts, length)

    def window(self, split: SplitName, start: int, count: int) -> NDArray[np.int64]:
        """[count] tokens that begin at `start` in the split's stream. Raises ValueError beyond its end."""
        tokens: NDArray[np.int64] = self.read(split, np.array([start]), count)[0]
        return tokens

    def starts(self, split: SplitName) -> NDArray[np.int64]:
        """[documents] where each document begins in the split's stream, read from the shards. Raises DataError."""
        found, begin = [np.empty(0, np.int64)], 0
        for _, member, _, starts in self._members(split):
            found.append(begin + starts)
            begin += member.tokens
        return np.concatenate(found)

    def documents(self, split: SplitName) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """(record, tokens without begin and end of text) of each document in order; record: source, index, bytes,
        words.

        Raises DataError naming a damaged shard.
        """
        first, begins = 0, int(self.manifest.begin_of_text is not None)
        for shard, member, head, starts in self._members(split):
            records = self._records(head, shard, len(starts))
            tokens = self.window(split, first, member.tokens)
            for record, begin, end in zip(records, starts, [*starts[1:], member.tokens], strict=True):
                yield record, tokens[begin + begins : end - 1].copy()
            first += member.tokens

    def documents_at(self, split: SplitName, start: int, tokens: int) -> list[DocumentSpan]:
        """The documents that have any of the `tokens` tokens from `start` on in the split's stream, in order. Reads of
        the shards only what was recorded beside those tokens. Raises ValueError beyond the stream's end."""
        if tokens <= 0 or start < 0 or start + tokens > self.num_tokens(split):
            raise ValueError(
                f"tokens {start}..{start + tokens} lie outside the stream of {self.num_tokens(split)}, or are none."
            )
        spans: list[DocumentSpan] = []
        end, shards = start + tokens, self.manifest.splits[split].shards
        table = ShardTable.of(shards)
        borders = np.concatenate([[0], np.cumsum(table.sizes[2])])
        first, last = np.searchsorted(borders, [start, end - 1], side="right") - 1
        for n in range(int(first), int(last) + 1):
            shard, members = shards[n], slice(*table.firsts[n : n + 2].tolist())
            firsts = borders[n] + np.concatenate([[0], np.cumsum(table.tokens[members])])
            chosen = np.flatnonzero((firsts[:-1] < end) & (start < firsts[1:])).tolist()
            for number, head in zip(chosen, self._streams[split].heads(n, chosen), strict=True):
                starts = firsts[number] + read_starts(head, shard.members[number], self._where(shard))
                records = self._records(head, shard, len(starts))
                ends = np.append(starts[1:], firsts[number + 1])
                for index in np.flatnonzero((starts < end) & (start < ends)).tolist():
                    spans.append(DocumentSpan(records[index], int(starts[index]), int(ends[index] - starts[index])))
        return spans

    def excerpt(self, split: SplitName, start: int, tokens: int, tokenizer: Tokenizer) -> str:
        """The text of a span of the split's stream, of its first 64 tokens at most. `tokenizer` is the dataset's."""
        ids = self.window(split, start, min(tokens, _EXCERPT_TOKENS))
        return tokenizer.decode(ids[~np.isin(ids, self.manifest.boundary_tokens)])

    def verify(self, share: int = 0, shares: int = 1) -> None:
        """Compare every byte with the manifest's digests, and on this machine every token with the vocabulary.

        Raises DataError naming the first file that differs.

        Of several processes that verify together, each takes one of `shares` equal shares of the files.
        """
        files: list[Shard | TokenizerRecord | FileRecord] = [
            *self._all_shards(),
            *self.manifest.small_files,
        ]
        for file in files[share::shares]:
            if self.remote and isinstance(file, Shard):
                where = self._storage.name(file.file)
                sha256 = self._storage.sha256(file.file, file.bytes, file.sha256)
            else:
                path = self.directory / file.file
                _check_file(path)
                where, sha256 = str(path), file_sha256(path)
            if sha256 != file.sha256:
                raise DataError(f"{where} is damaged: its checksum isn't the manifest's; build it again.")

        own_shards = {file.file for file in files[share::shares] if isinstance(file, Shard)}
        for name, stream in self._streams.items():
            for number, shard in enumerate(self.manifest.splits[name].shards):
                if isinstance(stream, LocalTokens) and shard.file in own_shards:
                    stream.check_vocabulary(number)

    def _members(self, split: SplitName) -> Iterator[tuple[Shard, Member, bytes, NDArray[np.int64]]]:
        """(shard, member, the member's head, starts of its documents) of each member."""
        for n, shard in enumerate(self.manifest.splits[split].shards):
            documents = 0
            heads = self._streams[split].heads(n, range(len(shard.members)))
            for member, head in zip(shard.members, heads, strict=True):
                starts = read_starts(head, member, self._where(shard))
                documents += len(starts)
                yield shard, member, head, starts
            if documents != shard.documents:
                raise DataError(
                    f"{self._where(shard)} is damaged: it has {documents:,} documents, not {shard.documents:,}."
                )

    def _records(self, head: bytes, shard: Shard, documents: int) -> list[dict[str, Any]]:
        records = read_records(head, self._where(shard))
        if len(records) != documents:
            raise DataError(
                f"{self._where(shard)} is damaged: its documents and their records differ in number; build it again."
            )
        return records

    def _where(self, shard: Shard) -> str:
        """The shard's path or address, for errors."""
        return self._storage.name(shard.file) if self.remote else str(self.directory / shard.file)

    def _all_shards(self) -> list[Shard]:
        return [shard for split in self.manifest.splits.values() for shard in split.shards]


def _checked_shards(directory: Path, tables: Sequence[ShardTable]) -> dict[str, os.stat_result]:
    """The state of each shard by name, from one listing. Raises DataError as `_check_file`."""
    try:
        with os.scandir(directory) as entries:
            files = {entry.name: entry.stat() for entry in entries if entry.is_file() and not entry.is_symlink()}
    except OSError as error:
        raise DataError(f"{directory} can't be read ({error.strerror}); fix its permissions.") from error
    for table in tables:
        for name, size in zip(table.names, table.bytes.tolist(), strict=True):
            if name not in files or files[name].st_size != size:
                _check_file(directory / name, size)  # says what is wrong, if it is not just a link to here
                files[name] = os.stat(directory / name)
    return files


def _check_file(path: Path, expected_bytes: int | None = None) -> None:
    """Raises DataError unless it is a file in its own directory, of that size."""
    try:
        if not path.is_file():
            raise DataError(f"{path} is missing; put it back, or build the dataset again elsewhere.")
        size, inside = path.stat().st_size, path.resolve().parent == path.parent.resolve()
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}); fix its permissions.") from error
    if not inside:
        raise DataError(f"{path} is a link out of the dataset's directory; put the file there, or link all of it.")
    if expected_bytes is not None and size != expected_bytes:
        raise DataError(
            f"{path} has {size:,} bytes, but was written with {expected_bytes:,}; copy it again, "
            "or build the dataset again elsewhere."
        )
