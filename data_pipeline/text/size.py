"""The size of texts in what people count: bytes, characters and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_pipeline.text.words import Words


class TextSize(NamedTuple):
    """Amount of text."""

    bytes: int
    """Bytes in UTF-8."""
    words: int
    """Words, split at white space in every language, as all datasets count them: a sentence of Chinese is one."""
    characters: int
    """Code points."""
    unicode_words: int
    """Words in the writing of any language (`words.py`)."""


def text_sizes(documents: Sequence[Sequence[str]]) -> list[TextSize]:
    """The size of each document, of all its texts together. Hand it many documents at once, as `Words.of` says."""
    texts = [text for document in documents for text in document]
    borders = np.cumsum([0, *map(len, documents)])  # of each document among the texts
    firsts = Words.of(texts).firsts if texts else np.zeros(1, np.int64)
    return [
        TextSize(
            bytes=sum(len(text.encode()) for text in document),
            words=sum(len(text.split()) for text in document),
            characters=sum(map(len, document)),
            unicode_words=unicode_words,
        )
        for document, unicode_words in zip(documents, np.diff(firsts[borders]).tolist(), strict=True)
    ]
