"""Documents cut into pieces of a row's length, of which none crosses the end of its document."""

from __future__ import annotations

import numpy as np

from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.manifest import SplitName


class DocumentPieces:
    """A split's pieces of up to `text_tokens` of one document, without its end of text; of two tokens at least. 16
    bytes a document in memory."""

    def __init__(self, dataset: TokenText, split: SplitName, text_tokens: int) -> None:
        self._text_tokens = text_tokens
        self.starts = np.append(dataset.starts(split), dataset.num_tokens(split))
        """[documents + 1] where each begins in the stream, and the end of the last"""
        lengths = np.diff(self.starts) - 1
        pieces = lengths // text_tokens + (lengths % text_tokens > 1)
        self._ends = np.cumsum(pieces)  # of each document's pieces, among all
        self.count = int(self._ends[-1]) if self._ends.size else 0
        self.num_skipped = int((pieces == 0).sum())
        """Documents of fewer than two tokens."""
        self.num_texts = int((lengths > 0).sum())
        """Documents that are not empty."""

    @property
    def num_documents(self) -> int:
        """Documents in all."""
        return len(self._ends)

    def piece(self, number: int) -> tuple[int, int, int]:
        """(document, where it begins in the stream, tokens) of a piece."""
        document = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[document - 1]) if document else 0
        start = int(self.starts[document]) + (number - before) * self._text_tokens
        return document, start, min(self._text_tokens, int(self.starts[document + 1]) - 1 - start)
