"""The characters of a row of tokens, whose pieces are often less than a word and, in bytes, less than a character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.writing.boundaries import DECIMAL_STOP, Boundaries

Ids = NDArray[np.int64]

_NO_TEXT = b"\0"
"""the bytes of a special token"""
_NO_CHARACTER = 0xFFFD


@dataclass(frozen=True)
class TokenRow:
    """The characters of a row of tokens."""

    codes: Ids
    """[characters] code points; U+FFFD for bytes that are no character"""
    first: Ids
    """[characters] the token that has its first byte"""
    last: Ids
    """[characters] the token that has its last byte"""
    begins_token: NDArray[np.bool_]
    """[characters] whether its first byte is the first of that token"""
    is_special: NDArray[np.bool_]
    """[characters] whether it is no text but a special token"""

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> TokenRow:
        """The row of tokens with these texts; an empty one is of a special token."""
        sizes = np.array([len(piece) or len(_NO_TEXT) for piece in pieces], np.int64)
        text = np.frombuffer(b"".join(piece or _NO_TEXT for piece in pieces), np.uint8)
        token = np.repeat(np.arange(len(pieces)), sizes)
        begins = np.ones(len(text), np.bool_)
        begins[1:] = token[1:] != token[:-1]
        special = np.array([not piece for piece in pieces], np.bool_)[token]
        starts = (text & 0xC0) != 0x80
        starts[:1] = True  # of a row that begins within a character
        starts |= special
        (firsts,) = starts.nonzero()
        ends = np.append(firsts[1:], len(text))
        return cls(_decoded(text, firsts, ends), token[firsts], token[ends - 1], begins[firsts], special[firsts])

    def boundaries(self) -> Boundaries:
        return Boundaries.of(self.codes, self.is_special)


def _decoded(text: NDArray[np.uint8], firsts: Ids, ends: Ids) -> Ids:
    """[characters] code points of UTF-8, of which each character has the bytes [first, end)."""
    lead = text[firsts].astype(np.int64)
    sizes = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
    codes = np.where(lead < 0x80, lead, lead & (0x7F >> sizes))
    for place in range(1, 4):
        more = text[np.minimum(firsts + place, len(text) - 1)]
        codes = np.where(sizes > place, codes << 6 | (more & 0x3F), codes)
    whole = (ends - firsts == sizes) & ((lead < 0x80) | (lead >= 0xC0)) & (codes < 0x110000)
    return np.where(whole, codes, _NO_CHARACTER)


def is_whole(piece: bytes) -> bool:
    """Whether a piece is of whole characters, the last of which says by itself what it is."""
    try:
        return DECIMAL_STOP not in piece.decode()
    except UnicodeDecodeError:
        return False
