"""Where words begin in rows of tokens, at a fraction of the cost of asking about all characters of a row."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.tokenizers.token_row import Ids, TokenRow, is_whole
from data_pipeline.writing.boundaries import THROUGH, kinds

_Said = NDArray[np.bool_]
"""[7, texts] what each says of words around it"""
_MET, _WHOLE, _HEAD, _BEGINS, _BELONGS, _BEHIND, _THROUGH = range(7)
"""MET: it was asked; WHOLE: it is of whole characters, and the rest counts; HEAD: it begins with a character; BEGINS: a
word begins with it behind any letter; BELONGS: none does even behind what is a word by itself; BEHIND: one begins
behind it; THROUGH: that depends on what is before it, as it is only marks, quotes, brackets and the like."""
_LATIN, _HAN = b"x", "\u4e2d".encode()
_CUT_AT_FIRST = re.compile(rb"^[\x80-\xbf]+")
_CUT_AT_LAST = re.compile(rb"([\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})$")
_MAX_GROUPS = 2**16


class WordBegins:
    """Each token is asked once, when it is met, and so is each group of tokens that share characters."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """For a vocabulary of these texts."""
        self._pieces = pieces
        self._said = np.zeros((7, len(pieces)), np.bool_)
        self._of_groups: dict[bytes, NDArray[np.bool_]] = {}

    def of(self, ids: Ids) -> NDArray[np.bool_]:
        """[n] whether a word begins with each token of a row [n]."""
        said = self._said
        is_whole = said[_WHOLE][ids]
        if not is_whole.all():
            unknown = np.unique(ids[~said[_MET][ids]])
            if len(unknown):
                said[:, unknown] = _said_by([self._pieces[index] for index in unknown.tolist()])
                is_whole = said[_WHOLE][ids]
        if is_whole.all():
            return _begins(*(said[which][ids] for which in (_BEGINS, _BELONGS, _BEHIND, _THROUGH)))
        firsts = np.append(0, said[_HEAD][ids[1:]].nonzero()[0] + 1)
        of_groups = self._said_by_groups(ids, is_whole, firsts)
        if not of_groups[_WHOLE].all():
            return self.by_characters(ids)
        found = np.zeros(len(ids), np.bool_)
        found[firsts] = _begins(*of_groups[_BEGINS:])
        return found

    def by_characters(self, ids: Ids) -> NDArray[np.bool_]:
        """The same as `of` finds, by all characters of the row."""
        return _begin_of([self._pieces[index] for index in ids.tolist()])[0]

    def _said_by_groups(self, ids: Ids, is_whole: NDArray[np.bool_], firsts: Ids) -> _Said:
        """Answers (`_Said`) of the groups of tokens from one of `firsts` to the next, which share characters."""
        found = self._said[:, ids[firsts]]
        (groups,) = (~np.logical_and.reduceat(is_whole, firsts)).nonzero()
        ends = np.append(firsts[1:], len(ids))[groups].tolist()
        keys = [ids[first:end].tobytes() for first, end in zip(firsts[groups].tolist(), ends, strict=True)]
        known = self._of_groups
        unknown = list({key for key in keys if key not in known})
        if len(known) + len(unknown) > _MAX_GROUPS:
            known.clear()
            unknown = list(set(keys))
        if unknown:
            texts = [self._text(np.frombuffer(key, ids.dtype)) for key in unknown]
            known.update(zip(unknown, _said_by(texts).T, strict=True))
        found[:, groups] = np.array([known[key] for key in keys]).T
        return found

    def _text(self, group: Ids) -> bytes:
        """The text of a group, with a letter for the part of a character at either end, which a row is cut within."""
        pieces = [self._pieces[index] for index in group.tolist()]
        if not pieces[0]:
            return b"\xff"  # a special token with such a part behind it, which is none of its text
        return _CUT_AT_LAST.sub(_LATIN, _CUT_AT_FIRST.sub(_LATIN, b"".join(pieces)))


def _begins(
    begins: NDArray[np.bool_], belongs: NDArray[np.bool_], behind: NDArray[np.bool_], through: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[n] whether a word begins with each of n texts, by what they say."""
    if through.any():
        behind = behind[np.maximum.accumulate(np.where(through, 0, np.arange(len(through))))]
    begins[1:] |= behind[:-1] & ~belongs[1:]
    return begins


def _said_by(pieces: list[bytes]) -> _Said:
    """Answers (`_Said`) of each piece: the rule is asked about it among letters of both ways of writing."""
    whole = [is_whole(piece) for piece in pieces]
    known = [piece if is_whole else _LATIN for piece, is_whole in zip(pieces, whole, strict=True)]
    begins, row = _begin_of([part for piece in known for part in (b"", _LATIN, piece, _LATIN, b"", _HAN, piece)])
    belonging = np.ones(len(begins), np.bool_)
    belonging[row.first[kinds()[row.codes] & THROUGH == 0]] = False
    of_piece, through = begins.reshape(-1, 7), belonging.reshape(-1, 7)[:, 2]
    head = [not _CUT_AT_FIRST.match(piece) for piece in pieces]
    met = np.ones(len(pieces), np.bool_)
    return np.array([met, whole, head, of_piece[:, 2], ~of_piece[:, 6], of_piece[:, 3], through])


def _begin_of(pieces: Sequence[bytes]) -> tuple[NDArray[np.bool_], TokenRow]:
    """(whether a word begins with each text of a row, the row)"""
    row, found = TokenRow.of(pieces), np.zeros(len(pieces), np.bool_)
    found[row.first[row.begins_token & row.boundaries().begins_word]] = True
    return found, row
