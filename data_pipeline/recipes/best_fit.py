"""GPT's recipe without text of other documents: whole documents side by side in a row, each seen by itself alone.

A document of T tokens, its end of text included, gives T - 1 pairs of a token and its successor; one of more than S
pairs is cut into pieces of S, so that a piece's last label is the next one's first token. `bins.py` packs the pieces
into rows of S. So of each document every token but the first is a label exactly once an epoch, and few documents are
cut (Ding et al. 2024, arXiv 2404.10830). Which piece of a length comes where is a keyed permutation: rows have other
neighbours in each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.common.hashing import mix64
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.order.order import permute, permute_each, round_keys
from data_pipeline.recipes.base import Ids, check_dataset
from data_pipeline.recipes.bins import NumberedBins, best_fit_decreasing
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.windows import inputs_and_labels

_ROWS_SEED = -1  # no run's: a run shuffles the rows again


@dataclass(frozen=True)
class BestFitRecipe:
    """Rows of `sequence_length`."""

    objective: Objective
    sequence_length: int
    vocabulary: int

    @property
    def target_length(self) -> int:
        """Each position has a label, which does not count where the row is padding."""
        return self.sequence_length

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, which says that rows are packed."""
        return {"objective": self.objective.settings()}

    def samples(self, dataset: TokenText, split: SplitName) -> PackedRows:
        """Raises DataError when no document has two tokens."""
        check_dataset(dataset, dataset.manifest.tokenizer.identity)
        return PackedRows(dataset, split, self.sequence_length)


class PackedRows:
    """One split's documents in rows.

    Keeps 8 bytes a piece in memory (a document is a piece, or one for each S of its tokens), and takes about 50 for a
    moment while it plans: 2 s for 10 million documents.
    """

    def __init__(self, dataset: TokenText, split: SplitName, length: int) -> None:
        """Raises DataError when no document has two tokens."""
        self._dataset, self._split, self._length = dataset, split, length
        starts = dataset.starts(split)
        pairs = np.diff(starts, append=dataset.num_tokens(split)) - 1
        self.num_skipped = int((pairs == 0).sum())
        total = int(pairs.sum())
        if not total:
            raise DataError(
                f"No document of the {split} split of {dataset.address} has two tokens; add text, and build it again."
            )
        self._packing = Packing(*_cut(starts, pairs, length), length)
        self.count = self._packing.count
        self.padding = 1 - total / (self.count * length)
        """Share of all positions that holds nothing."""

    def rows(self, seed: int, ids: Ids) -> Rows:
        """The lengths of a row's pieces follow from its number; which pieces of these lengths, from seed, source and
        epoch too."""
        row, length, begin = self._packing.pieces(seed, ids)
        first = np.searchsorted(row, np.arange(len(ids)))  # piece of each row
        column = np.cumsum(length) - length
        column -= column[first][row]
        tokens = np.full((len(ids), self._length), self._dataset.manifest.tokenizer.end_of_text, np.int64)
        labels, documents = tokens.copy(), np.full_like(tokens, -1)
        for size in np.unique(length).tolist():
            chosen = np.flatnonzero(length == size)
            spans = self._dataset.read(self._split, begin[chosen], size + 1)
            cells = row[chosen, None], column[chosen, None] + np.arange(size)
            tokens[cells], labels[cells] = inputs_and_labels(spans)
            documents[cells] = (chosen - first[row[chosen]])[:, None]
        return Rows(tokens, labels, (documents >= 0).astype(np.float32), documents=documents)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """[pieces, 3] (row, where its piece begins in the stream, tokens with its last label)."""
        row, length, begin = self._packing.pieces(seed, ids)
        return np.stack([row, begin, length.astype(np.int64) + 1], axis=1)


class Packing:
    """Pieces in rows of `size`, of which each holds as much as best-fit decreasing finds for it."""

    def __init__(self, pieces: Ids, lengths: NDArray[np.integer[Any]], size: int) -> None:
        """`pieces` [n] are numbers that identify the pieces, whose `lengths` [n] are 1 to `size`."""
        self._sorted = pieces[np.argsort(lengths, kind="stable")]
        """[pieces] by length, and of one length as they were given."""
        self._counts = np.bincount(lengths, minlength=size + 1)
        """[size + 1] pieces of each length."""
        self._first = np.cumsum(self._counts) - self._counts
        self._bins = NumberedBins(best_fit_decreasing(self._counts.tolist(), size), size)
        self.count = self._bins.count
        """Rows in all."""

    def pieces(self, seed: int, ids: Ids) -> tuple[Ids, Ids, Ids]:
        """(the index of its row in `ids`, its length, itself) of each piece of the samples `ids`, row by row."""
        # Bins of a kind lie together, long documents first: shuffled, so that any part of the rows is like the whole.
        bins = permute(ids[:, 2], self.count, round_keys(_ROWS_SEED, 0, 0))
        row, length, number = self._bins.pieces(bins)
        keys = np.stack([round_keys(seed, source, epoch) for source, epoch in ids[:, :2].tolist()], axis=1)
        index = permute_each(number, self._counts[length], keys[:, row] ^ mix64(length.astype(np.uint64)))
        return row, length, self._sorted[self._first[length] + index]


def _cut(starts: Ids, pairs: Ids, length: int) -> tuple[Ids, NDArray[np.unsignedinteger]]:
    """Documents by where they begin and their pairs of tokens -> pieces of at most `length` pairs: where they begin,
    and their pairs."""
    pieces = -(-pairs // length)
    last = np.cumsum(pieces)
    lengths = np.full(int(last[-1]), length, np.min_scalar_type(length))
    has_any = pairs > 0
    lengths[last[has_any] - 1] = (pairs[has_any] - 1) % length + 1
    begins = np.repeat(starts - (last - pieces) * length, pieces)
    begins += np.arange(len(begins)) * length
    return begins, lengths
