"""Repairs characters and white space: what was decoded wrongly, can't be seen, or can be written in several ways.

Best the first step of a build, as the others count lines, words and characters.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import ftfy
from pydantic import Field

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep
from data_pipeline.text.wrapping import unwrap
from data_pipeline.writing.scripts import JOINERS, WORD_BREAK, without_idle_breaks, without_idle_joiners

_LINE_END = re.compile(r"[\r\v\f\x85\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but tab and newline
    r"\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    r"\ufdd0-\ufdef\ufffe\uffff]"  # no characters, by definition
)
_MOJIBAKE_NEEDS = re.compile(r"[^\x00-\x7f]{2}|[\x80-\x9f\u0152\u0153\u00c2\u00c3]")
"""Found wherever ftfy's own (slower) expression finds something: two characters in a row that are not ASCII, or one of
those that it takes for a sign by themselves or beside ASCII."""


class Repair(LocalStep):
    """One spelling for equal texts: characters, line ends and blanks."""

    takes_pairs: ClassVar[bool] = True
    version: ClassVar[int] = 3

    name: Literal["repair"] = "repair"
    mojibake: bool = Field(
        default=True, description="undo UTF-8 that was read in another encoding (cafÃ© -> café), line by line, by ftfy"
    )
    normal_form: Literal["nfc", "nfkc", "none"] = Field(
        default="nfc",
        description="Unicode normalization: nfc (equal characters are one code), nfkc (also ligatures, full-width "
        "letters, superscripts; loses distinctions) or none",
    )
    indentation: bool = Field(
        default=False, description="keep the blanks that a line begins with, as code and verse need it"
    )
    unwrap: bool = Field(
        default=False,
        exclude_if=lambda value: not value,  # so that builds without it are what they were
        description="join the lines of text that was wrapped at a width, as mail, news wires and plain books are; "
        "without it, steps that judge lines (c4, boilerplate) take most of such text",
    )
    blank_lines: int = Field(default=1, ge=0, description="blank lines in a row that stay; further ones go")

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops as `empty` what has no text left; counts the texts changed, by what was repaired."""
        for document in documents:
            changed: Counter[str] = Counter()
            texts = tuple(self.repair(text, changed) for text in document.texts)
            if not all(texts):
                stats.drop(replace(document, texts=tuple(_SURROGATE.sub("", text) for text in document.texts)), "empty")
                continue
            stats.changed += changed
            yield replace(document, texts=texts) if changed else document

    def repair(self, text: str, changed: Counter[str]) -> str:
        """`text` as it should be; `changed` counts each kind of repair that did something."""

        def step(kind: str, after: str) -> None:
            nonlocal text
            if after != text:
                changed[kind] += 1
                text = after

        if not text.isascii():
            # Two halves of a character may have come by themselves; a half without the other is none.
            if _SURROGATE.search(text):
                step("surrogates", text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore"))
            if self.mojibake:
                step("mojibake", "\n".join([_readable(line) for line in text.split("\n")]))
        step("line ends", _LINE_END.sub("\n", text.replace("\r\n", "\n")))
        seen = _UNSEEN.sub("", text)
        step("unseen characters", without_idle_breaks(seen) if WORD_BREAK in seen else seen)
        if any(joiner in text for joiner in JOINERS):
            step("unseen characters", without_idle_joiners(text))
        if self.normal_form == "nfc":
            step("normal form", unicodedata.normalize("NFC", text))
        elif self.normal_form == "nfkc":
            step("normal form", unicodedata.normalize("NFKC", text))
        if self.unwrap:
            step("wrapped lines", unwrap(text))
        step("white space", self._spaced(text))
        return text

    def _spaced(self, text: str) -> str:
        lines = text.split("\n")
        if self.indentation:
            starts = [line[: len(line) - len(line.lstrip())] if line.strip() else "" for line in lines]
            lines = [start + " ".join(line.split()) for start, line in zip(starts, lines, strict=True)]
        else:
            lines = [" ".join(line.split()) for line in lines]
        text = "\n".join(lines)
        if "\n" * (self.blank_lines + 2) in text:
            text = re.sub(rf"\n{{{self.blank_lines + 2},}}", "\n" * (self.blank_lines + 1), text)
        return text.strip("\n")


def _readable(line: str) -> str:
    return ftfy.fix_encoding(line) if not line.isascii() and _MOJIBAKE_NEEDS.search(line) else line


def repaired_by(steps: Sequence[Repair]) -> Callable[[str], str]:
    """Function that repairs a text by these steps, one after the other."""
    return functools.partial(_repaired, tuple(steps))


def _repaired(steps: tuple[Repair, ...], text: str) -> str:
    for step in steps:
        text = step.repair(text, Counter())
    return text
