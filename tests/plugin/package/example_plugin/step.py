"""Drops documents that are mostly capital letters."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats
from data_pipeline.steps.base import LocalStep


class Shouting(LocalStep):
    name: Literal["shouting"] = "shouting"
    most: float = Field(default=0.5, ge=0, le=1, description="share of capitals above which a document is dropped")

    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        for document in documents:
            if sum(map(str.isupper, document.text)) > self.most * len(document.text):
                stats.drop(document, "capitals")
            else:
                yield document
