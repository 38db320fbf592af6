"""Documents that are too short or too long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep


class Length(LocalStep):
    """Drops documents by how many characters they have; of pairs, either text."""

    takes_pairs: ClassVar[bool] = True
    name: Literal["length"] = "length"
    least_characters: int = Field(default=1, ge=0, description="shorter documents are dropped")
    most_characters: int | None = Field(
        default=None, gt=0, description="longer documents are dropped; default: no limit"
    )

    @model_validator(mode="after")
    def _least_is_below_most(self) -> Self:
        if self.most_characters is not None and self.least_characters > self.most_characters:
            raise ValueError("length.least_characters is above length.most_characters: no document is left")
        return self

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """See `LocalStep.run`; reasons: too short, too long."""
        for document in documents:
            sizes = [len(text) for text in document.texts]
            if min(sizes) < self.least_characters:
                stats.drop(document, "too short")
            elif self.most_characters is not None and max(sizes) > self.most_characters:
                stats.drop(document, "too long")
            else:
                yield document
