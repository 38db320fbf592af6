"""The token stream of a split: an array of tokens that isn't in memory. The base class, and the stream of local shards.

`remote.py` has the stream of remote shards.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.open_files import open_file_limit
from data_pipeline.dataset.manifest import DatasetManifest, Split
from data_pipeline.dataset.shard_table import ShardTable
from data_pipeline.errors import DataError

_LOOK_EVERY_S = 1.0


class TokenStream(ABC):
    """Random access to the tokens of a split. Safe to share between threads."""

    def __init__(self, manifest: DatasetManifest, split: Split) -> None:
        self._split, self._itemsize = split, manifest.itemsize
        self._vocabulary = manifest.tokenizer.vocabulary
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._table = ShardTable.of(split.shards)
        self._ends = np.cumsum(self._table.tokens)
        self._begins = self._ends - self._table.tokens
        self._shard_of = self._table.shard_of

    @abstractmethod
    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[rows, length] tokens from `starts` [rows] on. Raises ValueError beyond the end, and DataError naming a shard
        that has changed."""

    @abstractmethod
    def heads(self, shard: int, members: Sequence[int]) -> Iterator[bytes]:
        """The bytes of the shard before the tokens of each of `members`: see `member_headers.py`.

        Raises DataError as `read` does."""

    def _check_bounds(self, starts: NDArray[np.int64], length: int) -> None:
        """Raises ValueError for tokens outside the stream."""
        if starts.size and (starts.min() < 0 or starts.max() + length > self._split.tokens):
            raise ValueError(
                f"tokens {starts.min()}..{starts.max() + length} lie outside the stream of {self._split.tokens}."
            )


class LocalTokens(TokenStream):
    """Tokens of shards in a local directory. Shards are mapped when they are first read, and a window is one copy. At
    most a quarter of the process's limit on open files stay mapped.

    A mapped file that shrinks kills the process (SIGBUS), and one that is overwritten yields wrong tokens. So a shard's
    size is checked before each read, and every second whether its path still leads to the same file with the same
    modification time. A change between the check and the read goes unnoticed, as does one that a network file system's
    attribute cache hides for some seconds.
    """

    def __init__(
        self, manifest: DatasetManifest, split: Split, directory: Path, states: Mapping[str, os.stat_result]
    ) -> None:
        """`states` are the shards' states by name when the dataset was opened."""
        super().__init__(manifest, split)
        self._shift = self._table.offsets // self._itemsize - self._begins
        """[members] position in its shard, in tokens, minus position in the stream."""
        self._directory, self._names = f"{directory}{os.sep}", self._table.names
        self._sizes = self._table.bytes.tolist()
        self._states = np.array([_state(states[name]) for name in self._names], np.int64).reshape(-1, 4)
        self._open: list[_OpenShard | None] = [None] * len(self._names)
        self._opened: deque[int] = deque()
        """Numbers of the open shards, in the order in which they were opened."""
        self._most = open_file_limit() // 4
        self._lock = threading.Lock()

    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """See `TokenStream`. One gather and one cast if most windows are in one shard; otherwise row by row."""
        if not starts.size or not length:
            self._check_bounds(starts, length)
            return np.empty((len(starts), length), np.int64)
        member = np.minimum(self._ends.searchsorted(starts, side="right"), len(self._ends) - 1)
        inside = (starts >= self._begins[member]) & (starts + length <= self._ends[member])
        offsets, shard = starts + self._shift[member], self._shard_of[member]
        in_first = inside & (shard == shard[0])
        gathered = np.count_nonzero(in_first)  # small batches feel each call: this one is many times faster than all()
        if gathered == len(starts):
            return self._gathered(int(shard[0]), offsets, length)
        self._check_bounds(starts, length)
        if 2 * gathered > len(starts):
            out = self._gathered(int(shard[0]), np.where(in_first, offsets, offsets[in_first.argmax()]), length)
            left = np.flatnonzero(~in_first)
        else:
            out, left = np.empty((len(starts), length), np.int64), np.arange(len(starts))
        rows = zip(left.tolist(), *(values[left].tolist() for values in (inside, shard, offsets)), strict=True)
        for row, in_one_shard, n, offset in rows:
            tokens = self._shard(n).tokens if in_one_shard else ()
            out[row] = tokens[offset : offset + length] if in_one_shard else self._across(int(starts[row]), length)
        return out

    def check_vocabulary(self, number: int) -> None:
        """Raises DataError when a token of a shard is outside the vocabulary. Reads all tokens."""
        tokens, members = self._shard(number).tokens, range(*self._table.firsts[number : number + 2].tolist())
        for member in members:
            first = int(self._table.offsets[member]) // self._itemsize
            if tokens[first : first + int(self._table.tokens[member])].max() >= self._vocabulary:
                raise not_of_vocabulary(self._path(number), self._vocabulary)

    def heads(self, shard: int, members: Sequence[int]) -> Iterator[bytes]:
        """See `TokenStream`. Reads the file."""
        self._shard(shard)
        record = self._split.shards[shard]
        try:
            with open(self._path(shard), "rb") as file:
                for member in members:
                    begin, end = record.head(member, self._itemsize)
                    file.seek(begin)
                    yield file.read(end - begin)
        except OSError as error:
            raise DataError(f"{self._path(shard)} can't be read ({error.strerror}); put it back.") from error

    def _gathered(self, shard: int, offsets: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[rows, length] tokens of one shard from `offsets` [rows] on."""
        opened = self._shard(shard)
        windows = opened.windows
        if windows is None or windows.shape[1] != length:
            # A view of every window of the shard. sliding_window_view does the same, but takes as long as ten rows.
            windows = opened.windows = np.ndarray(
                (len(opened.tokens) - length + 1, length), self._dtype, opened.tokens, 0, (self._itemsize,) * 2
            )
        return windows[offsets].astype(np.int64)

    def _across(self, start: int, count: int) -> NDArray[Any]:
        """A span that begins in one member and ends in another."""
        pieces, member = [], int(np.searchsorted(self._ends, start, side="right"))
        while count:
            taken = min(count, int(self._ends[member]) - start)
            offset = start + int(self._shift[member])
            shard = int(self._shard_of[member])
            pieces.append(self._shard(shard).tokens[offset : offset + taken])
            start, count, member = start + taken, count - taken, member + 1
        return np.concatenate(pieces)

    def _shard(self, number: int) -> _OpenShard:
        """The shard, opened if necessary. Raises DataError when its file has changed since the dataset was opened."""
        shard = self._open[number] or self._opened_now(number)
        same, now = shard.file.size() == self._sizes[number], time.monotonic()
        if same and now >= shard.next_look:
            shard.next_look = now + _LOOK_EVERY_S
            try:
                same = self._is_as_it_was(number, os.stat(self._path(number)))
            except OSError:
                same = False
        if not same:
            raise self._changed(number)
        return shard

    def _opened_now(self, number: int) -> _OpenShard:
        """Opens the shard, and closes the one opened first if too many are open (its current readers still hold it)."""
        path, size = self._path(number), self._sizes[number]
        try:
            with open(path, "rb") as file:
                if not self._is_as_it_was(number, os.fstat(file.fileno())):
                    raise self._changed(number)
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise self._changed(number) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{path} can't be read ({error}); copy it again, or build the dataset again.") from error
        shard = _OpenShard(mapped, np.frombuffer(mapped, self._dtype, size // self._itemsize))
        with self._lock:
            self._open[number] = shard
            self._opened.append(number)
            while len(self._opened) > self._most:
                self._open[self._opened.popleft()] = None
        return shard

    def _is_as_it_was(self, number: int, status: os.stat_result) -> bool:
        return bool((self._states[number] == _state(status)).all())

    def _changed(self, number: int) -> DataError:
        return DataError(
            f"{self._path(number)} was changed, replaced or removed while it was in use; restore it and start again."
        )

    def _path(self, number: int) -> str:
        return self._directory + self._names[number]


@dataclass
class _OpenShard:
    file: mmap.mmap
    tokens: NDArray[Any]
    """All of the file's bytes, as tokens."""
    windows: NDArray[Any] | None = None
    """[windows, length] a view of all windows, of the length read last."""
    next_look: float = 0.0
    """Time of the next check that the path still leads to this file."""


def not_of_vocabulary(shard: str, vocabulary: int) -> DataError:
    """The error for a shard with tokens outside the vocabulary, which would index beyond a model's embeddings."""
    return DataError(f"{shard} has tokens beyond the {vocabulary:,} of its tokenizer; build the dataset again.")


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
