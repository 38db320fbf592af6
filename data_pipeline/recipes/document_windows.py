"""GPT's windows with each document seen by itself alone: documents end to end, cut where a window ends, and no token
attends to another document's (Llama 3's document mask; Megatron-LM's `--reset-attention-mask --reset-position-ids`).

Rows are those of `windows.py`, in the same order. Of each document every token but the first is a label exactly once an
epoch, since the first one follows from nothing that its document says; the last row is filled up with padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, check_dataset
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.windows import inputs_and_labels


@dataclass(frozen=True)
class DocumentWindowsRecipe:
    """Windows of `sequence_length`."""

    objective: Objective
    sequence_length: int
    vocabulary: int

    @property
    def target_length(self) -> int:
        """Each position has a label, which does not count where its document ends."""
        return self.sequence_length

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, which says that documents are apart."""
        return {"objective": self.objective.settings()}

    def samples(self, dataset: TokenText, split: SplitName) -> DocumentWindows:
        """Raises DataError when no document has two tokens."""
        check_dataset(dataset, dataset.manifest.tokenizer.identity)
        return DocumentWindows(dataset, split, self.sequence_length)


class DocumentWindows:
    """Windows of a split's stream. Keeps 8 bytes a document in memory."""

    def __init__(self, dataset: TokenText, split: SplitName, length: int) -> None:
        """Raises DataError when no document has two tokens."""
        self._dataset, self._split, self._length = dataset, split, length
        self._starts, self._tokens = dataset.starts(split), dataset.num_tokens(split)
        self.num_skipped = int((np.diff(self._starts, append=self._tokens) == 1).sum())
        if self._tokens == len(self._starts):
            raise DataError(
                f"No document of the {split} split of {dataset.address} has two tokens; add text, and build it again."
            )
        self.count = -(-(self._tokens - 1) // length)

    def rows(self, seed: int, ids: Ids) -> Rows:
        """Nothing about them is drawn."""
        begin = ids[:, 2] * self._length
        places = begin[:, None] + np.arange(self._length + 1)
        number = np.where(places < self._tokens, np.searchsorted(self._starts, places, side="right"), -1)
        labelled = (number[:, :-1] == number[:, 1:]) & (number[:, :-1] >= 0)
        documents = np.where(number >= 0, number - number[:, :1], -1)[:, :-1]
        tokens, labels = inputs_and_labels(self._spans(begin))
        return Rows(tokens, labels, labelled.astype(np.float32), documents=documents)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Each window, and the token after it, which is its last label."""
        begin = ids[:, 2] * self._length
        size = np.minimum(self._length + 1, self._tokens - begin)
        return np.stack([np.arange(len(ids)), begin, size], axis=1)

    def _spans(self, begin: Ids) -> NDArray[np.int64]:
        """[rows, length + 1] tokens; ends of text behind the stream."""
        spans = np.full((len(begin), self._length + 1), self._dataset.manifest.tokenizer.end_of_text, np.int64)
        whole = begin + self._length < self._tokens
        spans[whole] = self._dataset.read(self._split, begin[whole], self._length + 1)
        for row in np.flatnonzero(~whole):
            rest = self._tokens - int(begin[row])
            spans[row, :rest] = self._dataset.window(self._split, int(begin[row]), rest)
        return spans
