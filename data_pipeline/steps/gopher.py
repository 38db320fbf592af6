"""The filters of MassiveText for web pages: text that is not prose, and text that repeats itself.

Rae et al. 2021, appendix A.1.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import regex
from numpy.typing import NDArray
from pydantic import Field, model_validator

from data_pipeline.common.hashing import mix64
from data_pipeline.reading.documents import Document, batched
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.text.words import Words
from data_pipeline.writing.ends import ELLIPSES, count_ellipses
from data_pipeline.writing.scripts import script_of
from data_pipeline.writing.stop_words import STOP_WORDS
from data_pipeline.writing.words import WordCount, caseless, count_words, is_unspaced_letter, split_words

_BATCH_CHARACTERS = 2**19
_ALPHABETIC_WORD = re.compile(r"[^\W\d_]\S*")  # each word with a letter, from its first one: in every script
_MARKS = regex.compile(r"\p{M}+")
_LOOKED_AT = 2000  # characters that tell a document's script
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n")
_SALT = np.uint64(0xD6E8FEB86659FD93)


class GopherQuality(LocalStep):
    """Keeps documents that look like prose. Words are counted as `WordCount` does."""

    version: ClassVar[int] = 2
    name: Literal["gopher_quality"] = "gopher_quality"
    min_words: int = Field(default=50, ge=0, description="least number of words of a document")
    max_words: int = Field(default=100_000, gt=0, description="greatest number of words of a document")
    min_word_characters: float = Field(
        default=3,
        ge=0,
        description="least mean length of its words, marks and the letters of Korean syllables included; texts in "
        "scripts without spaces are not asked",
    )
    max_word_characters: float = Field(
        default=10,
        gt=0,
        description="greatest mean length of its words, without marks on letters; texts in scripts without spaces are "
        "not asked",
    )
    max_symbols: float = Field(default=0.1, ge=0, description="greatest ratio of # to words, and of ellipses to words")
    max_bullet_lines: float = Field(
        default=0.9, ge=0, le=1, description="greatest fraction of the lines that begin with a bullet"
    )
    max_ellipsis_lines: float = Field(
        default=0.3, ge=0, le=1, description="greatest fraction of the lines that end with ..."
    )
    min_alphabetic: float = Field(default=0.8, ge=0, le=1, description="least fraction of the words with a letter")
    language: str = Field(
        default="en",
        description="ISO 639 code of the language whose stop words are looked for; sources in several languages need a "
        "step each, with `only`. The English ones are those of the paper",
    )
    stop_words: list[str] | None = Field(
        default=None, description="words of prose; default: those of `language`. Its case makes no difference"
    )
    min_stop_words: int = Field(default=2, ge=0, description="least number of different stop words in a document")
    bullets: str = Field(
        default="•‣◦▪*-·・●○■◆", description="characters that count as a bullet (the paper names none)"
    )

    @model_validator(mode="after")
    def _stop_words_are_known(self) -> Self:
        if self.stop_words is None and self.language not in STOP_WORDS:
            raise ValueError(
                f"there are no stop words for language={self.language}, but for {', '.join(STOP_WORDS)}: give "
                "stop_words, or min_stop_words=0"
            )
        return self

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops by the first rule that is broken, which is the reason."""
        stop_words = _StopWords(STOP_WORDS[self.language] if self.stop_words is None else self.stop_words)
        bullets = tuple(self.bullets)
        for document in documents:
            if reason := self._reason(document.text, stop_words, bullets):
                stats.drop(document, reason)
            else:
                yield document

    def _reason(self, text: str, stop_words: _StopWords, bullets: tuple[str, ...]) -> str | None:
        count = WordCount.of(text)
        if count.words < max(1, self.min_words):
            return "few words"
        if count.words > self.max_words:
            return "many words"
        if 2 * len(count.spaced) >= count.words and (reason := self._length_reason(count.spaced)):
            return reason
        if text.count("#") > self.max_symbols * count.words:
            return "hash signs"
        if count_ellipses(text) > self.max_symbols * count.words:
            return "ellipses"
        lines = [line for line in map(str.strip, text.split("\n")) if line]
        if sum(line.startswith(bullets) for line in lines) > self.max_bullet_lines * len(lines):
            return "bullet lines"
        if sum(line.endswith(ELLIPSES) for line in lines) > self.max_ellipsis_lines * len(lines):
            return "ellipsis lines"
        without_letters = len(text.split()) - len(_ALPHABETIC_WORD.findall(text))
        if count.words - without_letters < self.min_alphabetic * count.words:
            return "words without letters"
        if not stop_words.are_in(text, self.min_stop_words):
            return "few stop words" if stop_words.are_of_script(text) else "another script than the stop words"
        return None

    def _length_reason(self, words: list[str]) -> str | None:
        """Whether the mean is within limits that are meant for letters. It is at least that of the letters without
        their marks, and at most that of letters and marks."""
        letters, count = "".join(words), len(words)
        if len(letters) < self.min_word_characters * count:
            letters = unicodedata.normalize("NFD", letters)
            return "short words" if len(letters) < self.min_word_characters * count else None
        if len(letters) > self.max_word_characters * count:
            letters = _MARKS.sub("", unicodedata.normalize("NFC", letters))
            return "long words" if len(letters) > self.max_word_characters * count else None
        return None


class _StopWords:
    """Stop words, to be found in texts; in scripts without spaces wherever they stand."""

    def __init__(self, words: Sequence[str]) -> None:
        known = frozenset(map(_plain, words))
        self._within = frozenset(word for word in known if any(map(is_unspaced_letter, word)))
        self._whole = known - self._within
        self._scripts = frozenset(script_of(character) for word in known for character in word if character.isalpha())

    def are_in(self, text: str, least: int) -> bool:
        """Whether the text has as many different ones."""
        text = _plain(text)
        within = sum(word in text for word in self._within)
        # Most scripts have nothing but white space between words, which is cheaper to see.
        return any(within + len(self._whole.intersection(split(text))) >= least for split in (str.split, split_words))

    def are_of_script(self, text: str) -> bool:
        """Whether half of the letters that the text begins with are of scripts that they have."""
        scripts = [script_of(character) for character in text[:_LOOKED_AT] if character.isalpha()]
        return 2 * sum(script in self._scripts for script in scripts) >= len(scripts)


class GopherRepetition(LocalStep):
    """Keeps documents that do not repeat themselves (table A1).

    A repeat is what has occurred before: of two equal lines one is a repeat. Characters of lines and paragraphs are
    counted against those of all of them; those of n-grams, each word once, against those of all words. In scripts
    without spaces an n-gram has as many letters as n words have on average.
    """

    version: ClassVar[int] = 2
    name: Literal["gopher_repetition"] = "gopher_repetition"
    max_lines: float | None = Field(default=0.3, description="greatest fraction of repeated lines; null: no limit")
    max_paragraphs: float | None = Field(
        default=0.3, description="greatest fraction of repeated paragraphs; null: no limit"
    )
    max_line_characters: float | None = Field(
        default=0.2, description="greatest fraction of characters in repeated lines; null: no limit"
    )
    max_paragraph_characters: float | None = Field(
        default=0.2, description="greatest fraction of characters in repeated paragraphs; null: no limit"
    )
    max_top_grams: dict[Annotated[int, Field(ge=2)], float] = Field(
        default={2: 0.2, 3: 0.18, 4: 0.16},
        description="greatest fraction of characters in the most frequent n-gram that is repeated, by n",
    )
    max_repeated_grams: dict[Annotated[int, Field(ge=2)], float] = Field(
        default={5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10},
        description="greatest fraction of characters in n-grams that have occurred before, by n",
    )

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops by the first rule that is broken, which is the reason: lines and paragraphs, then n-grams by length."""
        for batch in batched(documents, _BATCH_CHARACTERS):
            reasons = self._gram_reasons([document.text for document in batch])
            for document, grams in zip(batch, reasons, strict=True):
                if reason := self._line_reason(document.text) or grams:
                    stats.drop(document, reason)
                else:
                    yield document

    def _line_reason(self, text: str) -> str | None:
        kinds = (
            ("paragraphs", _PARAGRAPH_END.split(text), self.max_paragraphs, self.max_paragraph_characters),
            ("lines", text.split("\n"), self.max_lines, self.max_line_characters),
        )
        for kind, pieces, most, most_characters in kinds:
            part, characters = repeated_pieces(pieces)
            if most is not None and part > most:
                return f"repeated {kind}"
            if most_characters is not None and characters > most_characters:
                return f"characters in repeated {kind}"
        return None

    def _gram_reasons(self, texts: list[str]) -> list[str | None]:
        reasons: list[str | None] = [None] * len(texts)
        pieces = np.diff(Words.of(texts).firsts).tolist()
        per_word = [max(1, round(n / max(1, count_words(text)))) for n, text in zip(pieces, texts, strict=True)]
        longest = max([*self.max_top_grams, *self.max_repeated_grams], default=0)
        for letters in set(per_word):  # of a word
            those = [number for number, each in enumerate(per_word) if each == letters]
            for grams in repeated_grams(Words.of([texts[number] for number in those]), longest * letters):
                n, rest = divmod(grams.n, letters)
                for kind, parts, limits in (
                    ("top", grams.top, self.max_top_grams),
                    ("repeated", grams.repeated, self.max_repeated_grams),
                ):
                    if not rest and n in limits:
                        for text in np.flatnonzero(parts > limits[n]).tolist():
                            reasons[those[text]] = reasons[those[text]] or f"{kind} {n}-grams"
        return reasons


def _plain(text: str) -> str:
    return caseless(unicodedata.normalize("NFC", text))


@dataclass(frozen=True)
class Repetition:
    """Share of each text that lies in n-grams that it repeats, as a part of the characters of its words."""

    n: int
    top: NDArray[np.float64]
    """[texts] in all occurrences of the n-gram that occurs most; of several, the one of most characters; 0 when none
    occurs twice. Overlapping occurrences count each."""
    repeated: NDArray[np.float64]
    """[texts] in n-grams that have occurred before; a character of several of them counts once."""


def repeated_grams(words: Words, longest: int) -> Iterator[Repetition]:
    """For n from 2 to `longest`.

    An n-gram can be repeated only where the (n-1)-gram that it begins with is, so each round looks at what the one
    before has left: in prose, little.
    """
    count = len(words.hashes)
    texts = len(words.firsts) - 1
    text = np.repeat(np.arange(texts), np.diff(words.firsts))
    lengths = words.ends - words.begins
    total = np.maximum(1, np.bincount(text, lengths, texts))
    until = np.concatenate([[0], np.cumsum(lengths)])
    first = np.arange(count)
    # Equal words of different texts are made to differ, so that one sort serves all texts.
    hashes = mix64(words.hashes + text.astype(np.uint64) * _SALT)
    for n in range(2, longest + 1):
        inside = first + n - 1 < words.firsts[text[first] + 1]
        first, hashes = first[inside], hashes[inside]
        hashes = mix64(hashes * _SALT + words.hashes[first + n - 1])
        order = np.argsort(hashes, kind="stable")  # equal n-grams stay in the order of the text
        ordered = hashes[order]
        new = np.ones(len(order), bool)
        new[1:] = ordered[1:] != ordered[:-1]
        group = np.cumsum(new) - 1
        sizes = np.bincount(group)
        characters = until[first[order] + n] - until[first[order]]
        of_group = text[first[order[new]]]
        top = np.zeros(texts)
        most = np.zeros(texts, np.int64)
        np.maximum.at(most, of_group, sizes)
        best = (sizes == most[of_group]) & (sizes > 1)
        np.maximum.at(top, of_group[best], np.bincount(group, characters)[best])
        covered = np.zeros(count + 1, np.int64)
        again = first[order[~new]]
        np.add.at(covered, again, 1)
        np.add.at(covered, again + n, -1)
        inside_repeat = np.cumsum(covered[:-1]) > 0
        repeated = np.bincount(text[inside_repeat], lengths[inside_repeat], texts)
        yield Repetition(n, top / total, repeated / total)
        stays = order[sizes[group] > 1]
        first, hashes = first[stays], hashes[stays]


def repeated_pieces(pieces: Iterable[str]) -> tuple[float, float]:
    """(part of `pieces`, part of their characters) in those that have occurred before, but for blanks around them and
    empty pieces."""
    seen: set[str] = set()
    count = repeats = characters = repeated = 0
    for piece in pieces:
        if piece := piece.strip():
            count += 1
            characters += len(piece)
            if piece in seen:
                repeats += 1
                repeated += len(piece)
            seen.add(piece)
    return repeats / max(1, count), repeated / max(1, characters)
