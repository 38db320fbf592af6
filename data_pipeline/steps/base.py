"""Steps of a build: settings with the code that processes documents, one file per kind of step.

A local step decides about each document by itself. A global step must see all documents first: it gathers facts in one
pass over every chunk of the input, decides, and acts in the next pass. Both get the same documents in the same order in
every pass, so a document is identified by its position in its chunk.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from data_pipeline.common.tasks import BuildTask
from data_pipeline.config import StrictSettings
from data_pipeline.reading.documents import Document
from data_pipeline.reading.step_stats import StepStats


class Step(StrictSettings):
    """Settings of all steps. Every subclass has a `name: Literal[...]` with that name as its default."""

    paths: ClassVar[frozenset[str]] = frozenset()
    """Settings that are paths of `files`; a build depends on the files' contents, not on their paths."""
    takes_pairs: ClassVar[bool] = False
    """Whether the step supports documents of two texts."""
    version: ClassVar[int] = 1
    """Increase it when the same settings give other results, so that earlier builds are not taken for the same."""

    only: list[str] | None = Field(
        default=None, min_length=1, description="names of the sources to apply the step to; default: all"
    )

    @property
    def title(self) -> str:
        """The step's `name`."""
        return str(type(self).model_fields["name"].default)

    def version_of_settings(self) -> int:
        """`version`, or an earlier one since which these settings have given equal results."""
        return self.version

    def following(self, earlier: Sequence[Step]) -> Self:
        """The step as it works behind the `earlier` ones of its build: as it is, unless what they do concerns it."""
        return self

    def sources(self) -> list[str]:
        """Names of the sources that its settings refer to."""
        return list(self.only or [])

    def execution_settings(self) -> dict[str, Any]:
        """Settings that change intermediate files but not the result."""
        return {}

    def files(self) -> list[Path]:
        """Files besides the input that the step depends on, such as texts to train a model on."""
        return []

    def prepare(self, folder: Path) -> Iterable[list[BuildTask]]:
        """Lists of tasks to run once before any document is processed, such as training a model into `folder`; a list
        starts when the previous one is done."""
        return ()

    def findings(self, folder: Path) -> dict[str, Any]:
        """Further entries for the build's report, besides the step's statistics, once it is done."""
        return {}


class LocalStep(Step):
    """Decides about each document by itself."""

    @abstractmethod
    def run(self, documents: Iterable[Document], stats: StepStats, folder: Path) -> Iterator[Document]:
        """Yields the documents to keep, changed or not, in the order of the input; dropped ones are reported to
        `stats.drop`, with the reason.

        The caller counts input and output. `folder` holds the results of `prepare`.
        """


@dataclass(frozen=True)
class GatheredChunk:
    """A chunk of the input, as a global step sees it."""

    number: int
    """Its index among all chunks, from 0: sources in the order of the config, files by name."""
    source: str
    """The name of the source that it belongs to."""
    validation: bool
    """Whether all of its documents are held out."""
    documents: int
    """Number of its documents."""
    facts: Path
    """The file that `gather` wrote."""


class GlobalStep(Step):
    """Decides about documents once it has seen all of them."""

    @abstractmethod
    def gather(self, documents: Iterable[Document], facts: Path, folder: Path) -> Iterator[Document]:
        """Yields the documents of a chunk unchanged, and writes what `decide` needs to the file `facts`."""

    @abstractmethod
    def decide(self, chunks: list[GatheredChunk], folder: Path) -> Generator[list[BuildTask], list[Any], None]:
        """Yields tasks and receives their results, repeatedly; at the end, `folder` holds the decision on each
        document.

        Memory is bounded, whatever the number of documents.
        """

    @abstractmethod
    def run(self, documents: Iterable[Document], stats: StepStats, chunk: int, folder: Path) -> Iterator[Document]:
        """See `LocalStep.run`; for the documents of chunk number `chunk`, according to the decisions."""
