"""Drops the lines of a web page that belong to the site: notices, menus, and what its head and foot repeat."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.writing.ends import ends_prose
from data_pipeline.writing.words import count_words

# English ones; a build in another language gives its own.
_NOTICES = (
    r"(?:we|(?:this|our|the) (?:web)?site) (?:also )?uses? (?:\w+ )?cookies",
    r"^(?:accept|allow|reject|decline|manage) (?:all )?cookies",
    r"^(?:skip|jump) to (?:the )?(?:main )?(?:content|navigation|menu)",
    r"^(?:log|sign) (?:in|out|up)(?: (?:or|/) (?:log|sign|register).{0,20})?$",
    r"^(?:share|tweet|pin|print|e-?mail)(?: this| it)?(?: page| article| post)?(?: (?:on|via|by|to) [\w -]{1,20})?$",
    r"^(?:read|learn|show|load|see|view) more\W*$",
    r"^(?:(?:©|\(c\)|copyright)\s*){1,3}(?:19|20)[0-9]{2}\b.{0,100}$",
    r"\ball rights reserved\W*$",
)


class Boilerplate(LocalStep):
    """Works on lines as they are; what is left of blank lines around those that go is one."""

    version: ClassVar[int] = 2
    name: Literal["boilerplate"] = "boilerplate"
    patterns: list[str] = Field(
        default=list(_NOTICES),
        description="regular expressions, upper or lower case, of which a line that has one goes; by itself cookie, "
        "copyright, log-in and share notices in English",
    )
    pattern_characters: int = Field(
        default=200, gt=0, description="longest line that the patterns are looked for in: a longer one is text"
    )
    menu_lines: int = Field(
        default=4,
        ge=0,
        description="short lines in a row, blank ones aside, that are taken for a menu and go; 0: none are. Takes "
        "lists of single words, too",
    )
    menu_words: int = Field(
        default=3, gt=0, description="most words of a line of a menu, which has no punctuation at its end either"
    )
    edge_lines: int = Field(
        default=5,
        ge=0,
        description="among how many of the first lines, and of the last, those go that the document has had before",
    )

    @field_validator("patterns")
    @classmethod
    def _patterns_can_be_read(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is no regular expression ({error}); repair it or leave it out"
                ) from error
        return patterns

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops as `empty` what has no line left; counts the lines that went from others, by kind."""
        notices = [re.compile(pattern, re.IGNORECASE) for pattern in self.patterns]
        for document in documents:
            lines = [line.strip() for line in document.text.split("\n")]
            gone: dict[int, str] = {}
            self._find_notices(lines, notices, gone)
            self._find_menus(lines, gone)
            self._find_repeats(lines, gone)
            if not any(line for number, line in enumerate(lines) if number not in gone):
                stats.drop(document, "empty")
            elif gone:
                stats.changed += Counter(gone.values())
                left = [line for number, line in enumerate(document.text.split("\n")) if number not in gone]
                yield replace(document, texts=(re.sub(r"\n{3,}", "\n\n", "\n".join(left)).strip("\n"),))
            else:
                yield document

    def _find_notices(self, lines: list[str], notices: list[re.Pattern[str]], gone: dict[int, str]) -> None:
        for number, line in enumerate(lines):
            if len(line) <= self.pattern_characters and any(notice.search(line) for notice in notices):
                gone[number] = "notices"

    def _find_menus(self, lines: list[str], gone: dict[int, str]) -> None:
        if not self.menu_lines:
            return
        run: list[int] = []
        for number, line in [*enumerate(lines), (len(lines), "The end.")]:
            if not line or number in gone:
                continue
            if not ends_prose(line) and count_words(line) <= self.menu_words:
                run.append(number)
                continue
            if len(run) >= self.menu_lines:
                gone.update(dict.fromkeys(run, "menu lines"))
            run = []

    def _find_repeats(self, lines: list[str], gone: dict[int, str]) -> None:
        if not self.edge_lines:
            return
        numbers = [number for number, line in enumerate(lines) if line and number not in gone]
        last_of_head, first_of_foot = self.edge_lines, len(numbers) - self.edge_lines
        seen: set[str] = set()
        for index, number in enumerate(numbers):
            if lines[number] in seen and not last_of_head <= index < first_of_foot:
                gone[number] = "repeats at head or foot"
            seen.add(lines[number])
