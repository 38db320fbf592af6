"""The rules of the Colossal Clean Crawled Corpus for web pages (Raffel et al. 2020, section 2.2).

They were made for English. Here words are counted and sentences end as those of any script do; phrases to look for are
those of English unless you give others.

The paper and the code that its authors published ask for 3 sentences in a page and 5 words in a line; the paper's first
version said 5 and 3, which other projects took over. That code looks for lorem ipsum and curly brackets only in lines
that it keeps and drops lines with a word of more than 1,000 characters; the paper has the one in the whole page and
does not have the other, and so it is here unless `max_word_characters` is set.

Of the rest of C4, repeated runs of three sentences and the language are steps of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import regex
from pydantic import Field

from data_pipeline.common.tasks import BuildTask
from data_pipeline.config import FilePath
from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.writing.ends import ELLIPSES, count_sentences, ends_sentence, has_no_terminals
from data_pipeline.writing.words import WordCount, caseless, count_words, is_unspaced_letter

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")  # digits of any script; the words are English
_IN_WORD = r"[\p{L}\p{M}\p{N}_]"


class C4(LocalStep):
    """Keeps the lines of a page that are sentences, and the pages that have some and none of what is not wanted."""

    paths: ClassVar[frozenset[str]] = frozenset({"bad_words"})
    version: ClassVar[int] = 2
    name: Literal["c4"] = "c4"
    min_sentences: int = Field(
        default=3,
        ge=0,
        description="sentences that a page must have once lines are removed; a sentence ends at . ! or ? "
        "before a blank (so at some abbreviations, too), at the terminals of other scripts, and with a line",
    )
    min_words: int = Field(default=5, ge=0, description="words that a line must have")
    max_word_characters: int | None = Field(
        default=None,
        gt=0,
        description="lines with a longer word go; absent: no such rule (the published code has 1000)",
    )
    end_marks: str | None = Field(
        default=None,
        description="a line must end with one of these characters, and not with an ellipsis; default: what ends "
        "sentences in any script, and closing quotation marks. Lines of Thai and Lao, which have no such marks, are "
        "not asked unless you give some",
    )
    citations: bool = Field(default=True, description="remove marks such as [1], [edit] and [citation needed]")
    line_phrases: list[str] = Field(
        default=[
            "javascript",
            "terms of use",
            "privacy policy",
            "cookie policy",
            "uses cookies",
            "use of cookies",
            "use cookies",
        ],
        description="lines with one of these go, upper or lower case",
    )
    page_phrases: list[str] = Field(
        default=["lorem ipsum", "{"], description="pages with one of these are dropped, upper or lower case"
    )
    bad_words: FilePath | None = Field(
        default=None,
        description="file of words and phrases, one per line, that drop a page which has one as whole words; "
        "absent: no such rule (C4's is the English List of Dirty, Naughty, Obscene or Otherwise Bad Words)",
    )

    def files(self) -> list[Path]:
        """The list of bad words."""
        return [] if self.bad_words is None else [self.bad_words]

    def prepare(self, folder: Path) -> Iterable[list[BuildTask]]:
        """Has nothing to do but see that the list can be read; raises DataError if it can't."""
        self._bad_words()
        return ()

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops pages by phrase, `bad words` or `few sentences`; counts the lines that went from those that stay.

        Raises DataError when the list of bad words can't be read.
        """
        bad_words = self._bad_words()
        line_phrases = [caseless(phrase) for phrase in self.line_phrases]
        page_phrases = [caseless(phrase) for phrase in self.page_phrases]
        end_marks = None if self.end_marks is None else tuple(self.end_marks)
        for document in documents:
            text, lower = document.text, caseless(document.text)
            if matched := next((phrase for phrase in page_phrases if phrase in lower), None):
                stats.drop(document, matched)
                continue
            if any(phrase in lower and expression.search(lower) for phrase, expression in bad_words):
                stats.drop(document, "bad words")
                continue
            # A page without a phrase has no line with it.
            phrases = [phrase for phrase in line_phrases if phrase in lower]
            changed: Counter[str] = Counter()
            if self.citations and "[" in text:
                text, changed["citation marks"] = _CITATION.subn("", text)
            lines = []
            for line in text.split("\n"):
                if line := line.strip():
                    if reason := self._line_reason(line, end_marks, phrases):
                        changed[reason] += 1
                    else:
                        lines.append(line)
            text = "\n".join(lines)
            if count_sentences(text) < self.min_sentences:
                stats.drop(document, "few sentences")
                continue
            if not text:
                stats.drop(document, "empty")
                continue
            stats.changed += changed
            yield replace(document, texts=(text,))

    def _line_reason(self, line: str, end_marks: tuple[str, ...] | None, phrases: list[str]) -> str | None:
        ends = ends_sentence(line) or has_no_terminals(line) if end_marks is None else line.endswith(end_marks)
        if not ends or line.endswith(ELLIPSES):
            return "lines without end mark"
        if count_words(line) < self.min_words:
            return "lines of few words"
        if self.max_word_characters and max(map(len, WordCount.of(line).spaced), default=0) > self.max_word_characters:
            return "lines with a long word"
        if phrases:
            lower = caseless(line)
            if matched := next((phrase for phrase in phrases if phrase in lower), None):
                return f"lines with {matched}"
        return None

    def _bad_words(self) -> list[tuple[str, regex.Pattern[str]]]:
        """(phrase, what finds it as whole words) of each phrase; at a letter of a script without spaces, words have no
        bounds to look for."""
        if self.bad_words is None:
            return []
        try:
            lines = self.bad_words.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"The list of bad words {self.bad_words} can't be read ({error}); give a UTF-8 file with a word or "
                "phrase per line, or leave bad_words out."
            ) from error
        phrases = sorted({caseless(line.strip()) for line in lines} - {""})
        return [(phrase, regex.compile(_whole(phrase), regex.V1)) for phrase in phrases]


def _whole(phrase: str) -> str:
    begin = "" if is_unspaced_letter(phrase[0]) else rf"(?<!{_IN_WORD})"
    end = "" if any(map(is_unspaced_letter, phrase[-2:])) else rf"(?!{_IN_WORD})"  # the last may be a mark
    return f"{begin}{regex.escape(phrase)}{end}"
