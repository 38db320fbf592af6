"""Samples of two segments, [CLS] A [SEP] B [SEP]. BERT's (Devlin et al. 2019, appendix A.2): B follows A in its
document or comes from another one. ALBERT's (Lan et al. 2019, arXiv 1909.11942, section 3.1): B follows A or comes
before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from data_pipeline.batch import Rows
from data_pipeline.dataset.backward import TokenText
from data_pipeline.dataset.manifest import SplitName
from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids, generator
from data_pipeline.recipes.pieces import DocumentPieces
from data_pipeline.tokenizers.specials import Vocabulary

_Segment = tuple[int, Ids]  # where its tokens begin in the stream, and they
_SEARCH_TOKENS = 64  # in which a second segment from another document looks for the start of a sentence


class SegmentRows(Protocol):
    """Makes rows of texts with two segments."""

    @property
    def known(self) -> Vocabulary:
        """The ids."""
        ...

    def padded(self, rows: list[Ids], randoms: list[np.random.Generator], length: int, segments: list[Ids]) -> Rows:
        """Each row with some masked by its own generator, and which segment each of its tokens belongs to, padded to
        `length`."""
        ...


class Segments:
    """A split's pieces of up to `text_tokens` of one document, as two segments each."""

    fewest_documents = 2

    def __init__(
        self,
        dataset: TokenText,
        split: SplitName,
        masking: SegmentRows,
        *,
        sequence_length: int,
        text_tokens: int,
        short_fraction: float,
    ) -> None:
        """`short_fraction` of them are cut to a random length. Raises DataError unless there are as many documents with
        text as are needed, one of them of two tokens."""
        self._dataset, self._split, self._masking, self._known = dataset, split, masking, masking.known
        self._length, self._short_fraction = sequence_length, short_fraction
        self._pieces = DocumentPieces(dataset, split, text_tokens)
        self.count, self.num_skipped = self._pieces.count, self._pieces.num_skipped
        if self.count == 0:
            raise DataError(
                f"The {split} split of {dataset.address} has no document of two tokens, and so none of two segments: "
                "build it of longer ones."
            )
        if self._pieces.num_texts < self.fewest_documents:
            raise DataError(
                f"The {split} split of {dataset.address} has too few documents to take a next sentence from another "
                "one: next_sentence needs two, so build it of smaller ones (txt_documents) or with more text."
            )

    def rows(self, seed: int, ids: Ids) -> Rows:
        """[CLS] A [SEP] B [SEP] and padding."""
        specials = self._known.specials
        rows, randoms, segments, follows = [], [], [], []
        for sample in ids:
            random = generator(seed, sample)
            (_, first), (_, second), is_next = self._two(int(sample[2]), random)
            rows.append(np.concatenate([[specials.cls], first, [specials.sep], second, [specials.sep]]))
            randoms.append(random)
            segments.append(np.repeat([0, 1], [len(first) + 2, len(second) + 1]))
            follows.append(is_next)
        padded = self._masking.padded(rows, randoms, self._length, segments)
        return replace(padded, next_sentence=np.array(follows, np.int64))

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """Both segments of each sample, which `rows` draws in the same way."""
        spans = []
        for row, sample in enumerate(ids):
            first, second, _ = self._two(int(sample[2]), generator(seed, sample))
            spans += [(row, start, len(tokens)) for start, tokens in (first, second)]
        return self._dataset.as_written(self._split, np.array(spans, np.int64).reshape(-1, 3))

    def _two(self, number: int, random: np.random.Generator) -> tuple[_Segment, _Segment, bool]:
        """The segments of a piece, and whether the second one follows the first."""
        document, (start, piece), cut = self._piece(number, random)
        if random.random() < 0.5:
            return (start, piece[:cut]), (start + cut, piece[cut:]), True
        # As long as what it stands for, so that its length tells nothing.
        return (start, piece[:cut]), self._other(document, len(piece) - cut, random), False

    def _piece(self, number: int, random: np.random.Generator) -> tuple[int, _Segment, int]:
        """Its document, itself, and how much of it is the first segment."""
        document, start, size = self._pieces.piece(number)
        if random.random() < self._short_fraction:
            size = int(random.integers(2, size + 1))
        piece = self._dataset.window(self._split, start, size)
        ends = np.flatnonzero(self._known.sentence_ends(piece)[:-1]) + 1
        cut = int(random.choice(ends)) if ends.size else int(random.integers(1, size))
        return document, (start, piece), cut

    def _other(self, document: int, size: int, random: np.random.Generator) -> _Segment:
        """Up to `size` tokens of another document, from the start of a sentence where one is near."""
        length, starts = 0, self._pieces.starts
        while length == 0:  # an empty text
            other = int(random.integers(self._pieces.num_documents - 1))
            other += other >= document
            length = int(starts[other + 1] - starts[other]) - 1
        skipped = int(random.integers(length))
        count = min(size + _SEARCH_TOKENS, length - skipped)
        start = int(starts[other]) + skipped
        tokens = self._dataset.window(self._split, start, count)
        ends = np.flatnonzero(self._known.sentence_ends(tokens)[: min(_SEARCH_TOKENS, count - 1)])
        cut = int(ends[0]) + 1 if skipped and ends.size else 0
        return start + cut, tokens[cut:][:size]


class SwappedSegments(Segments):
    """A split's pieces of one document as two segments each, swapped half the time (ALBERT)."""

    fewest_documents = 1

    def _two(self, number: int, random: np.random.Generator) -> tuple[_Segment, _Segment, bool]:
        """See `Segments`."""
        _, (start, piece), cut = self._piece(number, random)
        before, after = (start, piece[:cut]), (start + cut, piece[cut:])
        return (before, after, True) if random.random() < 0.5 else (after, before, False)
