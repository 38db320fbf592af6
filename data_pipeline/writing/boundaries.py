"""Where words begin and sentences end in the writing of any language, by Unicode's properties of characters.

A word begins behind white space, and at each letter of a script that is written without spaces between words (Han,
kana, Thai, Lao, Burmese, Khmer ...): with the marks on it, each such letter is a word, as Chinese BERT takes Han. A
sentence ends behind a terminal of its script (Unicode's Sentence_Terminal) and the quotes and brackets that close
there: one of . ! ? only where white space follows, as 3.5 is no end, and behind a line end.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import regex
from numpy.typing import NDArray

SPACE, ALONE, MARK, TERMINAL, WEAK, CLOSER, LINE_END, DIGIT = (1 << bit for bit in range(8))
"""Kinds of characters. ALONE: a letter of a script without spaces; MARK: belongs to the character before it, as Thai's
vowel AM does, which is a letter by its category; WEAK: a terminal where white space follows."""
THROUGH = MARK | WEAK | CLOSER
"""characters that belong to the text before them, so that a word begins behind them where one would begin there"""
_PATTERNS = {
    SPACE: r"\p{White_Space}+",
    ALONE: r"[[\p{L}--\p{Lm}]&&[\p{lb=SA}\p{lb=ID}\p{lb=CJ}]]+",
    MARK: r"[\p{M}\p{Lm}\p{gcb=SM}\u200c\u200d]+",
    TERMINAL: r"[\p{STerm}--[.!?]]+",
    WEAK: r"[.!?]+",
    CLOSER: r"[\p{Pe}\p{Pf}\"'\uff02\uff07]+",
    LINE_END: r"[\n\u0085\u2028\u2029]+",
    DIGIT: r"\p{Nd}+",
}
DECIMAL_STOP = "\uff0e"
"""a full stop that is a decimal point before a digit"""
_SURROGATES, _PLANES = range(0xD800, 0xE000), 0x40000  # beyond them nothing is assigned but tags and private use


@functools.cache
def kinds() -> NDArray[np.uint8]:
    """[0x110000] the kinds of each code point, as bits."""
    found = np.zeros(0x110000, np.uint8)
    points = [point for point in range(_PLANES) if point not in _SURROGATES]
    text, places = "".join(map(chr, points)), np.array(points)
    for kind, pattern in _PATTERNS.items():
        for match in regex.compile(pattern, regex.V1).finditer(text):
            found[places[match.start() : match.end()]] |= kind
    return found


@dataclass(frozen=True)
class Boundaries:
    """Boundaries of words and sentences in a text, by character."""

    begins_word: NDArray[np.bool_]
    """[characters] whether a word begins with it"""
    ends_sentence: NDArray[np.bool_]
    """[characters] whether a sentence ends behind it"""

    @classmethod
    def of(cls, codes: NDArray[np.integer], separates: NDArray[np.bool_] | None = None) -> Boundaries:
        """The boundaries of a text of these code points [characters]. Where `separates` [characters] says so, one is no
        text but a token between words, as white space is."""
        of = kinds()[codes]
        apart = np.zeros(len(codes), np.bool_) if separates is None else separates
        space = (of & SPACE > 0) | apart
        ends = _sentence_ends(codes, of, space, apart)
        begins = space | (of & (ALONE | MARK) == ALONE)
        behind = (of & ALONE > 0) | apart | ends
        through = of & THROUGH > 0
        if through.any():  # whatever follows what is on a letter, or ends or closes it, follows the letter
            behind = behind[np.maximum.accumulate(np.where(through, 0, np.arange(len(codes))))] | ends
        begins[1:] |= behind[:-1] & (of & (THROUGH | TERMINAL) == 0)[1:]
        return cls(begins, ends)


def _sentence_ends(
    codes: NDArray[np.integer], of: NDArray[np.uint8], space: NDArray[np.bool_], apart: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    terminal = of & (TERMINAL | WEAK) > 0
    line = (of & LINE_END > 0) & ~apart
    ends = line.copy()
    if not terminal.any():
        return _last_of_lines(ends, space, apart)
    of_run = terminal | (of & CLOSER > 0)
    of_run &= ~apart
    begins = np.flatnonzero(of_run & ~np.append(False, of_run[:-1]))
    last = np.flatnonzero(of_run & ~np.append(of_run[1:], False))
    sums = np.zeros((2, len(of) + 1), np.int64)
    is_decimal = (codes == ord(DECIMAL_STOP)) & np.append(of[1:] & DIGIT > 0, False)
    np.cumsum((of & TERMINAL > 0) & ~is_decimal, out=sums[0, 1:])
    np.cumsum(of & WEAK > 0, out=sums[1, 1:])
    strong, weak = (row[last + 1] - row[begins] > 0 for row in sums)
    before_space = np.append(space[1:], True)[last]
    # An exclamation or question mark of Latin letters, in a text without spaces.
    marked = (codes[last] == ord("!")) | (codes[last] == ord("?"))
    before_alone = np.append(of[1:] & ALONE > 0, False)[last]
    ends[last[strong | (weak & (before_space | (marked & before_alone)))]] = True
    return _last_of_lines(ends, space, apart)


def _last_of_lines(
    ends: NDArray[np.bool_], space: NDArray[np.bool_], apart: NDArray[np.bool_]
) -> NDArray[np.bool_]:  # fmt: skip
    """`ends`, where of several with nothing but white space between them the last is left."""
    (places,) = ends.nonzero()
    if len(places) > 1:
        filled = np.cumsum(~space | apart)
        ends[places[:-1][filled[places[1:]] == filled[places[:-1]]]] = False
    return ends
