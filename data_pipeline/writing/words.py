"""Words of any writing: what white space separates, and letters of scripts that are written without spaces.

Words of Chinese, Japanese, Thai, Lao, Khmer, Burmese and the like can only be found with a dictionary of each language.
Here each of their letters is one, with the marks on it (a Han character, a kana, a grapheme of Thai). Where words are
counted, as many letters make up a word as these languages have in one on average.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass
from itertools import compress

import numpy as np
import regex
from numpy.typing import NDArray

SPACE, NOTHING, LETTER, UNSPACED, MARK = range(5)
"""Kinds of characters. NOTHING: punctuation and what can't be seen; LETTER: also digits and signs; MARK: belongs to
the letter before it."""
ALL = sys.maxunicode + 1
"""Number of code points."""
UNSPACED_LETTER = r"[[\p{L}--[\p{Lm}\p{gcb=SM}\p{Hangul}\p{Latin}]]&&[\p{lb=SA}\p{lb=ID}\p{lb=CJ}\p{lb=AK}\p{lb=AS}]]"
"""Letters beside which a line may break without a space (UAX 14), but for those of Korean and full-width Latin."""
SEPARATOR = r"[[\p{P}&&\p{lb=BA}]--[\p{Pd}\u2027]]"
"""Punctuation in place of a space between words, or before them without a space: Tibetan's tsheg, the wordspace of
Ethiopic, dandas."""
SPACES = r"[\p{White_Space}\x1c-\x1f]"
"""White space, as `str.split` has it."""
MARKS = r"[\p{M}\p{Lm}\p{gcb=SM}]"
"""Characters that belong to the letter before them. Thai's sara am is a letter and a spacing mark."""
_LETTERS_PER_WORD = (
    # Such that the Declaration of Human Rights, of 1,747 words in English, has 1,700 in Chinese, and from 1,500 to
    # 1,900 in Japanese, Thai, Lao, Khmer and Burmese.
    (UNSPACED_LETTER, 4),
    (r"[\p{Han}\p{Yi}\p{Bopomofo}\p{Tangut}\p{Nushu}]", 1.5),
    (r"[\p{Hiragana}\p{Katakana}]", 3),
)


_SEPARATORS = regex.compile(f"{SEPARATOR}+", regex.V1)


@dataclass(frozen=True)
class WordCount:
    """The words of a text, each with its punctuation."""

    spaced: list[str]
    """Texts between white space that hold no letter of a script without spaces and no separator of words."""
    others: float
    """Number of words that the rest makes up."""

    @classmethod
    def of(cls, text: str) -> WordCount:
        """The words of `text`."""
        chunks = text.split()
        if text.isascii():
            return cls(chunks, 0)
        table = _counts()
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        parts = table.parts[codes]
        if not parts.any():
            return cls(chunks, 0)
        space = table.space[codes]
        chunk = np.cumsum(~space & np.append(True, space[:-1])) - 1
        is_spaced = np.ones(len(chunks), np.bool_)
        is_spaced[chunk[parts]] = False
        run = np.cumsum(space | parts)  # of letters and digits of other scripts, beside letters without spaces
        runs = len(np.unique(run[table.counts[codes] & ~is_spaced[chunk]]))
        return cls(list(compress(chunks, is_spaced)), float(table.words[codes].sum()) + runs)

    @property
    def words(self) -> int:
        """All of them, rounded up."""
        return len(self.spaced) + math.ceil(self.others)


def split_words(text: str) -> list[str]:
    """Texts between white space and separators of words; of scripts without spaces, runs of many words."""
    return text.split() if text.isascii() else str(_SEPARATORS.sub(" ", text)).split()


def count_words(text: str) -> int:
    """Number of words in a text, in any script."""
    return WordCount.of(text).words


def is_unspaced_letter(character: str) -> bool:
    """Whether a character is a letter of a script without spaces."""
    return bool(_counts().words[ord(character)])


def caseless(text: str) -> str:
    """`text` without case, in any language: I of Turkish, with and without its dot, is i."""
    return text.casefold() if text.isascii() else text.replace("\u0130", "i").replace("\u0131", "i").casefold()


@functools.cache
def kinds_and_folds(size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """(kind, code of the character without case) of each code point below `size`."""
    kinds = np.full(size, NOTHING, np.uint8)
    for kind, pattern in (
        (LETTER, r"[^\p{P}\p{C}]"),
        (MARK, MARKS),
        (UNSPACED, UNSPACED_LETTER),
        (SPACE, rf"[{SPACES}{SEPARATOR}]"),
    ):
        kinds[_codes(pattern, size)] = kind
    folds = np.arange(size, dtype=np.uint64)
    for code, character in enumerate(map(chr, range(size))):
        if len(small := caseless(character)) == 1 or len(small := character.lower()) == 1:
            folds[code] = ord(small)
    return kinds, folds


@dataclass(frozen=True)
class _Counts:
    """Properties of each code point for `WordCount`: [ALL] each."""

    space: NDArray[np.bool_]
    parts: NDArray[np.bool_]
    """A letter of a script without spaces, or a separator."""
    counts: NDArray[np.bool_]
    """Another letter, or a digit."""
    words: NDArray[np.float64]
    """Words that a letter makes up."""


@functools.cache
def _counts() -> _Counts:
    space, parts, counts = np.zeros((3, ALL), np.bool_)
    words = np.zeros(ALL)
    space[_codes(SPACES, ALL)] = True
    parts[_codes(rf"[{UNSPACED_LETTER}{SEPARATOR}]", ALL)] = True
    counts[_codes(rf"[[\p{{L}}\p{{N}}]--[{UNSPACED_LETTER}{MARKS}]]", ALL)] = True
    for letters, per_word in _LETTERS_PER_WORD:
        words[_codes(rf"[{letters}&&{UNSPACED_LETTER}]", ALL)] = 1 / per_word
    return _Counts(space, parts, counts, words)


def _codes(pattern: str, size: int) -> NDArray[np.int64]:
    """The code points below `size` that a set has."""
    points, text = _assigned(size)
    runs = regex.compile(f"{pattern}+", regex.V1).finditer(text)
    return np.concatenate([points[:0], *(points[match.start() : match.end()] for match in runs)])


@functools.cache
def _assigned(size: int) -> tuple[NDArray[np.int64], str]:
    # Beyond, nothing is assigned but tags and private use; halves of surrogates are no characters.
    points = np.array([code for code in range(min(size, 0x40000)) if not 0xD800 <= code < 0xE000])
    return points, "".join(map(chr, points.tolist()))
