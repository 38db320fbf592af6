"""Where words begin and sentences end in rows of tokens: `writing/boundaries.py` of the text that they spell.

Pieces are often less than a word and, in bytes, less than a character. A word begins with a token whose first character
begins one; a sentence ends with the token that has the last byte of what ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizers.sentence_ends import SentenceEnds
from data_pipeline.tokenizers.token_row import Ids
from data_pipeline.tokenizers.word_begins import WordBegins


@dataclass(frozen=True)
class TokenBoundaries:
    """Boundaries in rows of a vocabulary."""

    pieces: Sequence[bytes]
    """[vocabulary] the text of each id, as bytes; an empty one is of a special token"""

    def begins_word(self, ids: Ids) -> NDArray[np.bool_]:
        """[n] whether a word begins with each token of a row [n]."""
        return self.begins.of(ids)

    def ends_sentence(self, ids: Ids) -> NDArray[np.bool_]:
        """[n] whether a sentence ends with each token of a row [n]."""
        return self.ends.of(ids)

    @cached_property
    def begins(self) -> WordBegins:
        """Finder of words' beginnings, which keeps what it has found of tokens so far."""
        return WordBegins(self.pieces)

    @cached_property
    def ends(self) -> SentenceEnds:
        """Finder of sentences' ends, which keeps what it has found of tokens so far."""
        return SentenceEnds(self.pieces)
