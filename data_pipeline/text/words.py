"""Texts as arrays: words with their hashes and positions, and n-grams of them, without a Python object per word.

A word is what remains of a run of characters without white space when its case and its punctuation are taken out
(Brown et al. 2020, appendix C); letters of scripts that are written without spaces are a word each, with the marks on
them. The hash of a word is a polynomial in its characters, modulo 2^64, so those of all words come out of one running
sum.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.hashing import mix64
from data_pipeline.writing.words import LETTER, MARK, NOTHING, SPACE, UNSPACED, kinds_and_folds

WordRule = Literal["unicode", "listed"]
"""Rules by which words are found. listed: that of earlier versions, with `_LISTED` in place of Unicode's properties,
for what they wrote to files."""
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
AT_ONCE = 2**19
"""characters; with the line ends between texts fewer than the powers that are kept at hand"""
_LISTED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Han, and with the next two its additions
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
"""Codes of which each is a word, as earlier versions had them: Tibetan, Bopomofo, Yi and half-width kana are missing,
and vowels of Thai are words."""


@dataclass(frozen=True)
class Words:
    """The words of several texts, one after the other."""

    hashes: NDArray[np.uint64]
    """[words] equal for equal words, in any text and process."""
    begins: NDArray[np.int64]
    """[words] character of its text that the word begins with."""
    ends: NDArray[np.int64]
    """[words] the character after its last."""
    firsts: NDArray[np.int64]
    """[texts + 1] number of the first word of each text, and that of all words."""

    @classmethod
    def of(cls, texts: Sequence[str], rule: WordRule = "unicode") -> Words:
        """Hand it many short texts at once: a call costs as much as some thousand characters. Long ones are read a part
        at a time, as what a part needs is many times its size."""
        if sum(len(text) for text in texts) <= AT_ONCE:
            return cls._of(texts, rule)
        per_group: list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]] = []
        counts = np.zeros(len(texts) + 1, np.int64)
        for group in _groups(texts):
            numbers, offsets, parts = zip(*group, strict=True)
            words = cls._of(parts, rule)
            each = np.diff(words.firsts)
            np.add.at(counts, np.array(numbers) + 1, each)
            offset = np.repeat(np.array(offsets, np.int64), each)
            per_group.append((words.hashes, words.begins + offset, words.ends + offset))
        hashes, begins, ends = (np.concatenate(columns) for columns in zip(*per_group, strict=True))
        return cls(hashes, begins, ends, np.cumsum(counts))

    @classmethod
    def _of(cls, texts: Sequence[str], rule: WordRule) -> Words:
        lengths = np.array([len(text) for text in texts], np.int64)
        borders = np.concatenate([[0], np.cumsum(lengths + 1)])  # a newline after each text
        joined = "\n".join([*texts, ""])
        codes, kinds, values = _characters(joined, rule)
        kept = np.flatnonzero(kinds != NOTHING)
        kinds, codes = kinds[kept], codes[kept]
        # A word begins at a letter after none, and at each character that is a word; marks go on in either.
        alone, mark = kinds == UNSPACED, kinds == MARK
        on_alone = np.zeros_like(mark)
        if mark.any():
            bearer = np.maximum.accumulate(np.where(mark, 0, np.arange(len(kinds))))
            on_alone = mark & alone[bearer]
        letter = (kinds == LETTER) | (mark & ~on_alone)
        first = np.flatnonzero((letter & ~np.append(False, letter[:-1])) | alone)
        last = np.flatnonzero(
            (letter & ~np.append(letter[1:], False)) | ((alone | on_alone) & ~np.append(on_alone[1:], False))
        )
        powers, inverses = _powers(max(20, len(kept).bit_length()))
        sums = np.zeros(len(kept) + 1, np.uint64)
        np.cumsum(values[codes] * powers[: len(kept)], out=sums[1:])
        hashes = mix64((sums[last + 1] - sums[first]) * inverses[first])
        starts = kept[first]
        text = np.searchsorted(borders, starts, side="right") - 1
        firsts = np.searchsorted(starts, borders)
        return cls(hashes, starts - borders[text], kept[last] + 1 - borders[text], firsts)

    def grams(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """(hash [grams], number of its first word [grams]) of every `n` words in a row within one text."""
        count = max(0, len(self.hashes) - n + 1)
        hashes = np.zeros(count, np.uint64)
        for offset in range(n):
            hashes = hashes * np.uint64(_BASE) + self.hashes[offset : offset + count]
        text = np.repeat(np.arange(len(self.firsts) - 1), np.diff(self.firsts))
        first = np.flatnonzero(text[:count] == text[n - 1 :])
        return mix64(hashes[first]), first

    def text_hashes(self) -> NDArray[np.uint64]:
        """[texts] equal for texts of equal words in equal order, in any process and version."""
        powers, inverses = _powers(max(20, len(self.hashes).bit_length()))
        sums = np.zeros(len(self.hashes) + 1, np.uint64)
        np.cumsum(self.hashes * powers[: len(self.hashes)], out=sums[1:])
        return mix64((sums[self.firsts[1:]] - sums[self.firsts[:-1]]) * inverses[self.firsts[:-1]])


def _groups(texts: Sequence[str]) -> Iterator[list[tuple[int, int, str]]]:
    """(number of the text, character that the part begins with, the part), together about `AT_ONCE` characters each."""
    group: list[tuple[int, int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        for begin, end in _cuts(text):
            if group and size + end - begin > AT_ONCE:
                yield group
                group, size = [], 0
            group.append((number, begin, text[begin:end]))
            size += end - begin
    yield group


def _cuts(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of parts that no word crosses: of `AT_ONCE` characters, or up to the next space beyond them."""
    begin = 0
    while len(text) - begin > AT_ONCE:
        limit = begin + AT_ONCE
        end = max(text.rfind(space, begin, limit) for space in " \n")
        if end < 0:
            end = min((place for space in " \n" if (place := text.find(space, limit)) >= 0), default=len(text) - 1)
        yield begin, end + 1
        begin = end + 1
    yield begin, len(text)


def _characters(text: str, rule: WordRule) -> tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.uint64]]:
    """(code of each character, its kind, what a code adds to a hash)."""
    if text.isascii():
        codes: NDArray[Any] = np.frombuffer(text.encode("ascii"), np.uint8)
        kinds, values = _tables(128, rule)
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds, values = _tables(sys.maxunicode + 1, rule)
    return codes, kinds[codes], values


@functools.cache
def _tables(size: int, rule: WordRule) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """(kind, value) of each code below `size`; upper and lower case have one value."""
    kinds, lower = kinds_and_folds(size) if rule == "unicode" else _listed(size)
    return kinds, mix64(lower + np.uint64(1))


def _listed(size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """`kinds_and_folds`, as earlier versions had them."""
    kinds = np.full(size, LETTER, np.uint8)
    lower = np.arange(size, dtype=np.uint64)
    for code, character in enumerate(map(chr, range(size))):
        if character.isspace():
            kinds[code] = SPACE
        elif unicodedata.category(character)[0] in "PC":  # punctuation; control and format characters, unassigned
            kinds[code] = NOTHING
        elif len(small := character.lower()) == 1:
            lower[code] = ord(small)
    for first, last in _LISTED:
        among = kinds[first : last + 1]
        among[among == LETTER] = UNSPACED
    return kinds, lower


@functools.lru_cache(maxsize=1)
def _powers(bits: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first 2**bits powers of the base, and of its inverse."""
    factors = np.full((2, 2**bits), [[_BASE], [pow(_BASE, -1, 2**64)]], np.uint64)
    factors[:, 0] = 1
    powers = np.multiply.accumulate(factors, axis=1)
    return powers[0], powers[1]
