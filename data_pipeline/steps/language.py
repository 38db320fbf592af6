"""Keeps documents of given languages, as py3langid sees them (naive Bayes over byte n-grams; Lui and Baldwin 2012).

It knows some 140 languages by their ISO 639 codes, and `zxx`, what is no language at all. fastText's lid.176.ftz is
three to four times faster and about as good, but takes JSON for Icelandic, and its model is under a
share-alike licence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from data_pipeline.common.tasks import BuildTask
from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep

_PADDING = re.compile(r"(\s\s)\s{2,}")
_MOST_PADDED = 16  # times the characters that are looked at


class Language(LocalStep):
    """Drops documents in other languages, and those whose language is uncertain."""

    version: ClassVar[int] = 2

    name: Literal["language"] = "language"
    keep: list[str] = Field(min_length=1, description="ISO 639 codes of the languages to keep, such as [en]")
    least: float = Field(
        default=0.65,
        ge=0,
        le=1,
        description="least probability of the language found: of messages of programs in 33 languages (500 characters "
        "each), 0.65 keeps 97% and turns away four in five of those that would be taken for another",
    )
    characters: int = Field(
        default=1000,
        gt=0,
        description="how much of a document's beginning is looked at: the time goes by the character, and more of them "
        "hardly change the verdict",
    )

    def prepare(self, folder: Path) -> Iterable[list[BuildTask]]:
        """Has nothing to do but see that the languages are known; raises DataError for one that is not."""
        self._check()
        return ()

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Drops as `language:` and the code found, or as `language:unsure` below the least probability."""
        self._check()
        keep, classify = frozenset(self.keep), _identifier().classify
        for document in documents:
            language, probability = classify(_beginning(document.text, self.characters))
            if probability < self.least:
                stats.drop(document, "language:unsure")
            elif language not in keep:
                stats.drop(document, f"language:{language}")
            else:
                yield document

    def _check(self) -> None:
        known = _identifier().labels
        for code in self.keep:
            if code not in known:
                raise DataError(
                    f"Step language can't keep {code!r}, which it doesn't know; it knows {' '.join(known)}."
                )


def _beginning(text: str, characters: int) -> str:
    """The first characters, where a run of blanks, as headers are padded with, counts as one or two."""
    beginning = text.lstrip()[:characters]
    if _PADDING.search(beginning):
        beginning = _PADDING.sub(r"\1", text[: _MOST_PADDED * characters].lstrip())[:characters]
    return beginning


@functools.cache
def _identifier() -> Any:
    # Takes most of a second, which only builds with this step should pay.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
