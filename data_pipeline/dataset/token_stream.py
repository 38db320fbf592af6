"""One split's members as one array of tokens that isn't in memory: what is common, and the one of local shards.

`remote.py` has the one of shards that lie elsewhere.
"""

from __future__ import annotations

import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.manifest import DatasetManifest, Split
from data_pipeline.errors import DataError

_LOOK_EVERY_S = 1.0


class TokenStream(ABC):
    """Where each token of a split lies. Safe to share between threads."""

    def __init__(self, manifest: DatasetManifest, split: Split) -> None:
        self._split, self._itemsize = split, manifest.itemsize
        self._vocabulary = manifest.tokenizer.vocabulary
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        members = [(n, member) for n, shard in enumerate(split.shards) for member in shard.members]
        self._ends = np.cumsum([member.tokens for _, member in members], dtype=np.int64)
        self._begins = self._ends - np.array([member.tokens for _, member in members], np.int64)
        self._shard_of = np.array([n for n, _ in members], np.int64)

    @abstractmethod
    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[rows, length] tokens from `starts` [rows] on. Raises ValueError beyond the end, DataError naming a shard
        that isn't what it was."""

    @abstractmethod
    def heads(self, shard: int, members: Sequence[int]) -> Iterator[bytes]:
        """What lies in the shard before the tokens of each of `members`: see `member_headers.py`.

        Raises DataError as `read` does."""

    def _check_bounds(self, starts: NDArray[np.int64], length: int) -> None:
        """Raises ValueError unless all of it is there."""
        if starts.size and (starts.min() < 0 or starts.max() + length > self._split.tokens):
            raise ValueError(
                f"tokens {starts.min()}..{starts.max() + length} lie outside the stream of {self._split.tokens}."
            )


class LocalTokens(TokenStream):
    """Of a directory on this machine: shards are mapped, and a window is one copy.

    A mapped file that gets shorter ends the process without a word (SIGBUS), and one that is written over gives other
    tokens. So the size of a shard is asked for before each read, and every second whether its name still leads to the
    same file, with the same time of change. What remains is a change between a look and the copy after it, and on a
    network file system what its attribute cache hides for some seconds.
    """

    def __init__(self, manifest: DatasetManifest, split: Split, directory: Path) -> None:
        """Raises DataError when a shard can't be opened."""
        super().__init__(manifest, split)
        members = [member for shard in split.shards for member in shard.members]
        first = np.array([member.offset // self._itemsize for member in members], np.int64)
        self._shift = first - self._begins
        """[members] position in its shard, in tokens, minus position in the stream."""
        self._paths = [str(directory / shard.file) for shard in split.shards]
        self._files: list[mmap.mmap] = []
        self._maps: list[NDArray[Any]] = []
        self._states: list[tuple[int, int, int, int]] = []
        self._sizes = [shard.bytes for shard in split.shards]
        self._next_look = [0.0] * len(split.shards)
        for path, shard in zip(self._paths, split.shards, strict=True):
            try:
                with open(path, "rb") as file:
                    self._states.append(_state(os.fstat(file.fileno())))
                    self._files.append(mmap.mmap(file.fileno(), shard.bytes, access=mmap.ACCESS_READ))
                self._maps.append(np.frombuffer(self._files[-1], self._dtype, shard.bytes // self._itemsize))
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{path} can't be read ({error}); copy it again, or build the dataset again."
                ) from error

    def read(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """One gather and one cast where most windows are of one shard; row by row where they are of many."""
        if not starts.size or not length:
            self._check_bounds(starts, length)
            return np.empty((len(starts), length), np.int64)
        member = np.minimum(self._ends.searchsorted(starts, side="right"), len(self._ends) - 1)
        inside = (starts >= self._begins[member]) & (starts + length <= self._ends[member])
        offsets, shard = starts + self._shift[member], self._shard_of[member]
        mine = inside & (shard == shard[0])
        gathered = np.count_nonzero(mine)  # small batches feel each call: this one is many times faster than all()
        if gathered == len(starts):
            return self._gathered(int(shard[0]), offsets, length)
        self._check_bounds(starts, length)
        if 2 * gathered > len(starts):
            out = self._gathered(int(shard[0]), np.where(mine, offsets, offsets[mine.argmax()]), length)
            left = np.flatnonzero(~mine)
        else:
            out, left = np.empty((len(starts), length), np.int64), np.arange(len(starts))
        for n in set(shard[left].tolist()):
            self._check(n)
        rows = zip(left.tolist(), *(values[left].tolist() for values in (inside, shard, offsets)), strict=True)
        for row, whole, n, offset in rows:
            out[row] = self._maps[n][offset : offset + length] if whole else self._across(int(starts[row]), length)
        return out

    def check_vocabulary(self, number: int) -> None:
        """Raises DataError when a token of a shard is none of the vocabulary. Reads all of them."""
        self._check(number)
        for member in self._split.shards[number].members:
            first = member.offset // self._itemsize
            if self._maps[number][first : first + member.tokens].max() >= self._vocabulary:
                raise not_of_vocabulary(self._paths[number], self._vocabulary)

    def heads(self, shard: int, members: Sequence[int]) -> Iterator[bytes]:
        """Read from the file."""
        self._check(shard)
        try:
            with open(self._paths[shard], "rb") as file:
                for member in members:
                    begin, end = self._split.shards[shard].head(member, self._itemsize)
                    file.seek(begin)
                    yield file.read(end - begin)
        except OSError as error:
            raise DataError(f"{self._paths[shard]} can't be read ({error.strerror}); put it back.") from error

    def _gathered(self, shard: int, offsets: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """[rows, length] tokens of one shard from `offsets` [rows] on."""
        self._check(shard)
        tokens = self._maps[shard]
        # Every window of the shard, as a view. sliding_window_view makes the same, in the time that ten rows take.
        windows: NDArray[Any] = np.ndarray(
            (len(tokens) - length + 1, length), self._dtype, tokens, 0, (self._itemsize, self._itemsize)
        )
        return windows[offsets].astype(np.int64)

    def _across(self, start: int, count: int) -> NDArray[Any]:
        """A span that begins in one member and ends in another."""
        pieces, member = [], int(np.searchsorted(self._ends, start, side="right"))
        while count:
            taken = min(count, int(self._ends[member]) - start)
            offset = start + int(self._shift[member])
            shard = int(self._shard_of[member])
            self._check(shard)
            pieces.append(self._maps[shard][offset : offset + taken])
            start, count, member = start + taken, count - taken, member + 1
        return np.concatenate(pieces)

    def _check(self, shard: int) -> None:
        """Raises DataError unless the shard is the file that was opened."""
        same, now = self._files[shard].size() == self._sizes[shard], time.monotonic()
        if same and now >= self._next_look[shard]:
            self._next_look[shard] = now + _LOOK_EVERY_S
            try:
                same = _state(os.stat(self._paths[shard])) == self._states[shard]
            except OSError:
                same = False
        if not same:
            raise DataError(
                f"{self._paths[shard]} was changed, replaced or removed while it was in use; put it back as it was "
                "and start again."
            )


def not_of_vocabulary(shard: str, vocabulary: int) -> DataError:
    """The error of a shard whose tokens the tokenizer does not know: a model would read beyond its embeddings."""
    return DataError(f"{shard} has tokens beyond the {vocabulary:,} of its tokenizer; build the dataset again.")


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
