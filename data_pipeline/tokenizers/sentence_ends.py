"""Where sentences end in rows of tokens, at a fraction of the cost of asking about all characters of a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizers.token_row import Ids, TokenRow, is_whole
from data_pipeline.writing.boundaries import ALONE, CLOSER, DIGIT, LINE_END, SPACE, TERMINAL, WEAK, kinds

_MAX_SPANS, _LONG_SPAN = 2**16, 32


class SentenceEnds:
    """Ends of sentences in rows of tokens. A token that may end a sentence decides together with those after it, up to
    the first character of a plain one: one of whole characters, without a terminal, closing mark or line end, and not
    of white space alone. Few such spans of tokens are different, so that each is looked at once. So are tokens, as they
    are met: most of a large vocabulary are not."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """For a vocabulary of these texts."""
        self._pieces = pieces
        self._alike = np.full(len(pieces), -1, np.int32)
        """[vocabulary] the first that was met of the tokens that say the same to what is before them; -1: not met"""
        self._may_end, self._is_plain = np.zeros((2, len(pieces)), np.bool_)
        """[vocabulary] whether a sentence may end within it; whether it says no more than its first character"""
        self._first_of: dict[int, int] = {}
        self._ends: dict[bytes, list[int]] = {}
        """the places of a span behind which a sentence ends"""

    def of(self, ids: Ids) -> NDArray[np.bool_]:
        """[n] whether a sentence ends with each token of a row [n]."""
        self._meet(ids)
        row, plain = self._alike[ids].tobytes(), self._is_plain[ids].tobytes()
        places, last, size = list[int](), 0, self._alike.itemsize
        for first in self._may_end[ids].nonzero()[0].tolist():
            if first < last:
                continue
            last = plain.find(True, first)
            if last < 0:
                last = len(ids)
            span = row[size * first : size * (last + 1)]
            ends = self._ends.get(span)
            if ends is None and last - first >= _LONG_SPAN:  # as of bytes, most of which are part of a character
                return self.by_characters(ids)
            if ends is None:
                ends = self._look_at(span, ids[first : last + 1])
            places += [first + place for place in ends]
        found = np.zeros(len(ids), np.bool_)
        found[places] = True
        return found

    def by_characters(self, ids: Ids) -> NDArray[np.bool_]:
        """The same as `of` finds, by all characters of the row."""
        row, found = TokenRow.of([self._pieces[index] for index in ids.tolist()]), np.zeros(len(ids), np.bool_)
        found[row.last[row.boundaries().ends_sentence]] = True
        return found

    def _meet(self, ids: Ids) -> None:
        unknown = ids[self._alike[ids] < 0]
        for index in np.unique(unknown).tolist() if len(unknown) else ():
            piece = self._pieces[index]
            self._alike[index] = index
            if not is_whole(piece):
                self._may_end[index] = True
            elif piece:
                of = kinds()[[ord(character) for character in piece.decode()]]
                may_end = bool((of & (TERMINAL | WEAK | LINE_END)).any())
                is_plain = not (may_end or (of & CLOSER).any() or (of & SPACE).all())
                self._may_end[index], self._is_plain[index] = may_end, is_plain
                if is_plain:
                    self._alike[index] = self._first_of.setdefault(int(of[0] & (SPACE | ALONE | DIGIT)), index)

    def _look_at(self, span: bytes, ids: Ids) -> list[int]:
        if len(self._ends) >= _MAX_SPANS:
            self._ends.clear()
        self._ends[span] = self.by_characters(ids).nonzero()[0].tolist()
        return self._ends[span]
