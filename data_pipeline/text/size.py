"""The size of texts in what people count: bytes, characters and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from data_pipeline.text.words import Words


class TextSize(NamedTuple):
    """How much text there is."""

    bytes: int
    """Bytes in UTF-8."""
    words: int
    """Words, split at white space in every language, as all datasets count them: a sentence of Chinese is one."""
    characters: int
    """Code points."""
    unicode_words: int
    """Words in the writing of any language (`words.py`)."""


def text_size(texts: Sequence[str]) -> TextSize:
    """The size of all `texts` together."""
    return TextSize(
        bytes=sum(len(text.encode()) for text in texts),
        words=sum(len(text.split()) for text in texts),
        characters=sum(map(len, texts)),
        unicode_words=int(Words.of(texts).firsts[-1]) if texts else 0,
    )
