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

from data_pipeline.writing.boundaries import (
    CLOSER,
    DECIMAL_STOP,
    LINE_END,
    SPACE,
    TERMINAL,
    THROUGH,
    WEAK,
    Boundaries,
    kinds,
)

Ids = NDArray[np.int64]

_NO_TEXT = b"\0"
"""the bytes of a special token"""
_NO_CHARACTER = 0xFFFD
_LATIN, _HAN = b"x", "\u4e2d".encode()


@dataclass(frozen=True)
class _Row:
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
    def of(cls, pieces: Sequence[bytes]) -> _Row:
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


@dataclass(frozen=True)
class TokenBoundaries:
    """Boundaries in rows of a vocabulary."""

    pieces: Sequence[bytes]
    """[vocabulary] the text of each id, as bytes; an empty one is of a special token"""

    def begins_word(self, ids: Ids) -> NDArray[np.bool_]:
        """[n] whether a word begins with each token of a row [n]."""
        tables = self._tables
        if not tables.suffice[ids].all():
            return self._begins_word_by_character(ids)
        # What the characters would say, at a fraction of the cost.
        found: NDArray[np.bool_] = tables.begins[ids]
        behind, through = tables.behind[ids], tables.through[ids]
        if through.any():
            last = np.maximum.accumulate(np.where(through, 0, np.arange(len(ids))))
            behind = behind[last]
        found[1:] |= behind[:-1] & ~tables.belongs[ids[1:]]
        return found

    def ends_sentence(self, ids: Ids) -> NDArray[np.bool_]:
        """[n] whether a sentence ends with each token of a row [n]."""
        # Between tokens that may end one, the first of the others says all that these do.
        kept = ~self._are_plain(ids)
        kept[1:] |= kept[:-1].copy()
        (places,) = kept.nonzero()
        found = np.zeros(len(ids), np.bool_)
        if len(places):
            row = self._row(ids[places])
            found[places[row.last[row.boundaries().ends_sentence]]] = True
        return found

    def _are_plain(self, ids: Ids) -> NDArray[np.bool_]:
        known = self._plain
        for index in np.unique(ids[known[ids] < 0]).tolist():
            known[index] = _is_plain(self.pieces[index])
        plain: NDArray[np.bool_] = known[ids] > 0
        return plain

    @cached_property
    def _plain(self) -> NDArray[np.int8]:
        """[vocabulary] `_is_plain` of each piece; -1: not asked so far, as few of a large vocabulary are met."""
        return np.full(len(self.pieces), -1, np.int8)

    def _begins_word_by_character(self, ids: Ids) -> NDArray[np.bool_]:
        row, found = self._row(ids), np.zeros(len(ids), np.bool_)
        found[row.first[row.begins_token & row.boundaries().begins_word]] = True
        return found

    def _row(self, ids: Ids) -> _Row:
        return _Row.of([self.pieces[index] for index in ids.tolist()])

    @cached_property
    def _tables(self) -> _Tables:
        return _Tables.of(self.pieces)


@dataclass(frozen=True)
class _Tables:
    """[vocabulary] each: what of a token's text decides about words around it."""

    suffice: NDArray[np.bool_]
    """whether it does: not for parts of characters"""
    begins: NDArray[np.bool_]
    """whether a word begins with it behind any letter"""
    belongs: NDArray[np.bool_]
    """whether none begins with it even behind what is a word by itself"""
    behind: NDArray[np.bool_]
    """whether a word begins behind it"""
    through: NDArray[np.bool_]
    """whether that depends on what is before it: it is only marks, quotes, brackets and the like"""

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> _Tables:
        """Asks the rule about each piece among letters of both ways of writing."""
        whole = [_is_whole(piece) for piece in pieces]
        known = [piece if is_whole else _LATIN for piece, is_whole in zip(pieces, whole, strict=True)]
        among = [part for piece in known for part in (b"", _LATIN, piece, _LATIN, b"", _HAN, piece)]
        row = _Row.of(among)
        begins: NDArray[np.bool_] = np.zeros(len(among), np.bool_)
        begins[row.first[row.begins_token & row.boundaries().begins_word]] = True
        of_piece = begins.reshape(-1, 7)
        belonging = kinds()[row.codes] & THROUGH > 0
        counts = np.zeros((2, len(among)), np.int64)
        np.add.at(counts[0], row.first, 1)
        np.add.at(counts[1], row.first, belonging)
        through = (counts[0] == counts[1]).reshape(-1, 7)[:, 2]
        return cls(np.array(whole), of_piece[:, 2], ~of_piece[:, 6], of_piece[:, 3], through)


def _is_plain(piece: bytes) -> bool:
    """Whether a text is of whole characters, with nothing that ends a sentence or closes behind its end, and more than
    white space."""
    if not piece or not _is_whole(piece):
        return False
    of = kinds()[[ord(character) for character in piece.decode()]]
    return not (of & (TERMINAL | WEAK | CLOSER | LINE_END)).any() and not (of & SPACE > 0).all()


def _is_whole(piece: bytes) -> bool:
    try:
        return DECIMAL_STOP not in piece.decode()
    except UnicodeDecodeError:
        return False
