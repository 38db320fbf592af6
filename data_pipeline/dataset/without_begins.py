"""Text as recipes read it that put special tokens of their own around it: the documents without their begin of text.

Such recipes ([CLS] text [SEP], text </s>) make of a dataset whose documents begin with a begin of text what they make
of one that was built without it, bit for bit: it is neither masked nor predicted, and follows no [CLS].
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import DatasetManifest, SplitName

Ints = NDArray[np.int64]


def without_begins(dataset: Dataset) -> TokenText:
    """The dataset without the begin of text of its documents; itself if they have none."""
    return dataset if dataset.manifest.begin_of_text is None else TextWithoutBegins(dataset)


@dataclass(frozen=True, eq=False)
class TextWithoutBegins:
    """A dataset without the first token of each document. Keeps 16 bytes a document in memory."""

    dataset: Dataset
    _begins: dict[SplitName, tuple[Ints, Ints]] = field(default_factory=dict, repr=False)

    @property
    def manifest(self) -> DatasetManifest:
        """See `Dataset`."""
        return self.dataset.manifest

    @property
    def address(self) -> str:
        """See `Dataset`."""
        return self.dataset.address

    @property
    def identity(self) -> str:
        """See `Dataset`."""
        return self.dataset.identity

    def num_tokens(self, split: SplitName) -> int:
        """See `Dataset`."""
        return self.dataset.num_tokens(split) - self.manifest.splits[split].documents

    def starts(self, split: SplitName) -> Ints:
        """See `Dataset`."""
        return self._starts(split)[1]

    def read(self, split: SplitName, starts: Ints, length: int) -> Ints:
        """See `Dataset`."""
        spans, begins = np.empty((len(starts), length), np.int64), self._starts(split)[0]
        first, sizes = self._written(split, starts, np.full(len(starts), length))
        for size in np.unique(sizes).tolist():  # rows of as many begins can be read together
            (rows,) = np.nonzero(sizes == size)
            places = first[rows, None] + np.arange(size)
            nearest = np.minimum(np.searchsorted(begins, places), len(begins) - 1)
            read = self.dataset.read(split, first[rows], size)
            spans[rows] = read[begins[nearest] != places].reshape(len(rows), length)
        return spans

    def window(self, split: SplitName, start: int, count: int) -> Ints:
        """See `Dataset`."""
        tokens: Ints = self.read(split, np.array([start]), count)[0]
        return tokens

    def as_written(self, split: SplitName, spans: Ints) -> Ints:
        """Spans [m, 3] (row, start, tokens) of this stream -> those of the stream as it was written, with the begins
        of text between their tokens."""
        first, sizes = self._written(split, spans[:, 1], spans[:, 2])
        return np.stack([spans[:, 0], first, sizes], axis=1)

    def _written(self, split: SplitName, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
        """(where they begin, tokens) of spans as they were written, from their first token to their last."""
        first, last = (self._position(split, place) for place in (starts, starts + np.maximum(lengths, 1) - 1))
        return first, np.where(lengths > 0, last + 1 - first, 0)

    def _position(self, split: SplitName, places: Ints) -> Ints:
        """Where tokens of this stream are in the stream as it was written."""
        return places + np.searchsorted(self._starts(split)[1], places, side="right")

    def _starts(self, split: SplitName) -> tuple[Ints, Ints]:
        """[documents] where each begins as it was written, and in this stream."""
        if split not in self._begins:
            begins = self.dataset.starts(split)
            self._begins[split] = begins, begins - np.arange(len(begins))
        return self._begins[split]
