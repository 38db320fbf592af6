"""Text read from its end: the same documents, each from its last token to its first.

The stream of a split that is read backward is the one that a build of reversed documents would have written: the last
document first, each document's tokens in reverse order, and an end of text behind each. So a recipe that is given a
`BackwardText` makes of it what it makes of a `Dataset` of reversed text, bit for bit, and nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import DatasetManifest, SplitName

Ints = NDArray[np.int64]


class TokenText(Protocol):
    """Members of a `Dataset` that recipes for plain text read, in either direction."""

    @property
    def manifest(self) -> DatasetManifest:
        """See `Dataset`."""

    @property
    def address(self) -> str:
        """See `Dataset`."""

    @property
    def identity(self) -> str:
        """See `Dataset`."""

    def num_tokens(self, split: SplitName) -> int:
        """See `Dataset`."""

    def starts(self, split: SplitName) -> Ints:
        """See `Dataset`."""

    def read(self, split: SplitName, starts: Ints, length: int) -> Ints:
        """See `Dataset`."""

    def window(self, split: SplitName, start: int, count: int) -> Ints:
        """See `Dataset`."""

    def as_written(self, split: SplitName, spans: Ints) -> Ints:
        """See `Dataset`."""


class BackwardText:
    """A dataset whose splits are read from their end. Token n of T lies at T - 2 - n of the stream as it was written,
    and the end of text behind all at T - 1."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.manifest, self.address, self.identity = dataset.manifest, dataset.address, dataset.identity

    def num_tokens(self, split: SplitName) -> int:
        """See `Dataset`."""
        return self._dataset.num_tokens(split)

    def starts(self, split: SplitName) -> Ints:
        """See `Dataset`."""
        tokens = self.num_tokens(split)
        ends = np.append(self._dataset.starts(split), tokens)[1:]
        return tokens - ends[::-1]

    def read(self, split: SplitName, starts: Ints, length: int) -> Ints:
        """See `Dataset`."""
        tokens = self.num_tokens(split)
        if len(starts) and starts.min() < 0:
            raise ValueError(f"tokens before the first one of the stream: {starts.min()}")
        spans = np.empty((len(starts), length), np.int64)
        ends = starts + length == tokens
        spans[~ends] = self._dataset.read(split, tokens - 1 - starts[~ends] - length, length)[:, ::-1]
        for row in np.flatnonzero(ends):
            spans[row, :-1] = self._dataset.window(split, 0, length - 1)[::-1]
            spans[row, -1] = self._dataset.window(split, tokens - 1, 1)[0]
        return spans

    def window(self, split: SplitName, start: int, count: int) -> Ints:
        """See `Dataset`."""
        tokens: Ints = self.read(split, np.array([start]), count)[0]
        return tokens

    def as_written(self, split: SplitName, spans: Ints) -> Ints:
        """Spans [m, 3] (row, start, tokens) of this stream -> those of the stream as it was written, in which the last
        end of text lies apart from the tokens that it follows here."""
        return np.array(list(self._as_written(split, spans)), np.int64).reshape(-1, 3)

    def _as_written(self, split: SplitName, spans: Ints) -> Iterator[tuple[int, int, int]]:
        tokens = self.num_tokens(split)
        for row, start, count in spans.tolist():
            ends = start + count == tokens
            if count > ends:
                yield row, tokens - 1 - start - count + ends, count - ends
            if ends:
                yield row, tokens - 1, 1
