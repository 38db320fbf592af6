"""Texts in one Unicode form, and the places of its characters in the text that it was made from."""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FORM: Final = "NFKC"


def comparable(text: str) -> str:
    """`text` in NFKC, in which equal characters are equal codes: composed or not, of any width, in ligatures or not."""
    return text if text.isascii() else unicodedata.normalize(_FORM, text)


def original_bounds(
    text: str, begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in `text` the runs lie that begin and end at these characters of `comparable(text)`. A run that holds a
    part of what one character became, or of what became one character, gets all of it."""
    if unicodedata.is_normalized(_FORM, text):
        return begins, ends
    inner = {character for character in set(text) if _continues(character)}
    starts = np.array([0, *(at for at, character in enumerate(text) if at and character not in inner)], np.int64)
    stops = np.append(starts[1:], len(text))
    lengths = _lengths([text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)])
    return np.repeat(starts, lengths)[begins], np.repeat(stops, lengths)[ends - 1]


def _lengths(parts: Sequence[str]) -> list[int]:
    found = {part: len(unicodedata.normalize(_FORM, part)) for part in set(parts)}
    return [found[part] for part in parts]


def _continues(character: str) -> bool:
    """Whether it may change its place, or become one with what is before it."""
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(first) > 0 or first in _composing()


@functools.cache
def _composing() -> frozenset[str]:
    """The characters that become one with some character before them."""
    hangul = map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])
    parts = (unicodedata.decomposition(character).split() for character in map(chr, range(sys.maxunicode + 1)))
    return frozenset([*hangul, *(chr(int(codes[1], 16)) for codes in parts if len(codes) == 2 and codes[0][0] != "<")])
