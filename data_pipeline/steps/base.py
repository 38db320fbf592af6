"""What a step of a build is: settings that know how to work on documents, one file per kind of step.

A local step decides about each document by itself. A global step must have seen all documents first: it gathers facts
in one pass over every chunk (a chunk of the input that one task reads), decides on them, and acts in the next pass.
Both get the same documents in the same order in every pass, so a document's position in its chunk is a name for it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from data_pipeline.common.tasks import BuildTask
from data_pipeline.config import StrictSettings
from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats


class Step(StrictSettings):
    """What all steps can be told. Every subclass has a `name: Literal[...]` with that name as its default."""

    paths: ClassVar[frozenset[str]] = frozenset()
    """Settings that name what is in `files`, wherever it lies."""
    takes_pairs: ClassVar[bool] = False
    """Whether documents of two texts can go through."""
    version: ClassVar[int] = 1
    """Raise it when equal settings would do otherwise: what was built before is not taken for the same then."""

    only: list[str] | None = Field(
        default=None, min_length=1, description="names of the sources whose documents it works on; absent: all"
    )

    @property
    def title(self) -> str:
        """The step's `name`."""
        return str(type(self).model_fields["name"].default)

    def sources(self) -> list[str]:
        """Names of the sources that its settings speak of."""
        return list(self.only or [])

    def state(self) -> dict[str, Any]:
        """Settings that change no result, but what is on the disk on the way to it."""
        return {}

    def files(self) -> list[Path]:
        """Files besides the input that its work depends on, such as texts to train a model on."""
        return []

    def prepare(self, folder: Path) -> Iterable[list[BuildTask]]:
        """What has to be done once before any document is seen, such as training a model into `folder`: tasks, of which
        a list begins when the one before is done."""
        return ()

    def findings(self, folder: Path) -> dict[str, Any]:
        """What the build's report says of the step besides its tally, once it is done."""
        return {}


class LocalStep(Step):
    """Decides about each document by itself."""

    @abstractmethod
    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """The documents that go on, changed or not, in the order in which they came; those that don't are told to
        `stats.drop`, with the reason.

        What goes in and comes out is counted outside. `folder` holds what `prepare` made.
        """


@dataclass(frozen=True)
class GatheredChunk:
    """A chunk of the input, as a global step knows it."""

    number: int
    """Its index among all chunks, from 0: sources in the order of the config, files by name."""
    source: str
    """The name of the source that it belongs to."""
    validation: bool
    """Whether all of its documents are held out."""
    documents: int
    """How many were gathered from."""
    facts: Path
    """What `gather` wrote."""


class GlobalStep(Step):
    """Decides about documents once it has seen all of them."""

    @abstractmethod
    def gather(self, documents: Iterable[Document], facts: Path, folder: Path) -> Iterator[Document]:
        """Yields the documents of a chunk unchanged, and writes what `decide` needs to the file `facts`."""

    @abstractmethod
    def decide(self, chunks: list[GatheredChunk], folder: Path) -> Generator[list[BuildTask], list[Any], None]:
        """Yields tasks, is sent their results, and so on; in the end `folder` says what becomes of each document.

        Memory is bounded whatever the number of documents.
        """

    @abstractmethod
    def run(self, documents: Iterable[Document], stats: StepStats, chunk: int, folder: Path) -> Iterator[Document]:
        """As LocalStep.run, for the documents of chunk number `chunk`, by what was decided."""
