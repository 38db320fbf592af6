"""The common part of exact and fuzzy deduplication: which items are compared, and which copy is kept.

Items (documents or paragraphs) are equal if they have equal keys. `gather` writes keys to sorted runs; tasks link equal
ones, each in a range of keys; other tasks turn links into decisions, a byte per item. Each task holds `items_per_task`
items, however many there are, and the result does not depend on how the work and the documents were split.
"""

from __future__ import annotations

import graphlib
from abc import abstractmethod
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from data_pipeline.common.arrays import batched
from data_pipeline.common.tasks import BuildTask
from data_pipeline.dedup.duplicate_links import link
from data_pipeline.dedup.merge import count_items, merge_chunk_links, merge_keys, merge_pairs
from data_pipeline.dedup.plan import ChunkTable, DedupPlan, RemovalRule
from data_pipeline.errors import DataError
from data_pipeline.steps.base import GatheredChunk, GlobalStep
from data_pipeline.steps.decisions import LINKS, MARKS, MOVED, decide_block, label_components, move_marks

_CHUNKS_PER_TASK = 512
_HELD_OUT, _REMOVED = 2, 3  # codes, after those of verdicts; two for each removal:
_STRONG, _WEAK = 0, 1


class Removal(BaseModel):
    """Two sources, from one of which duplicates of the other are removed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)
    like: str = Field(description="the source whose documents are kept")
    from_: str = Field(alias="from", description="the source from which duplicates of the other are removed")


class DedupStep(GlobalStep):
    """A step that keeps one of several equal or similar items."""

    name: str
    compare: Literal["all", "within"] = Field(
        default="all",
        description="all: compare documents of all sources with each other; within: only within each source (GPT-3). "
        "In both cases, training documents that duplicate held-out ones of any source are dropped",
    )
    prefer: list[str] = Field(
        default=[],
        description="with compare=all: sources whose copies are kept, best first; the others follow in order",
    )
    remove: list[Removal] = Field(
        default=[],
        max_length=50,
        description="with compare=within: pairs {like: SOURCE, from: SOURCE}; duplicates of documents of `like` are "
        "removed from `from`, with all their duplicates there (GPT-3: like WebText, from Common Crawl)",
    )
    items_per_task: int = Field(
        default=2**22,
        gt=0,
        description="keys that a task holds in memory, of about 100 bytes each; the result does not depend on it",
    )
    _chained: ClassVar[bool]
    """Whether two items count as similar because both are similar to a third."""

    @model_validator(mode="after")
    def _sources_are_compared_one_way(self) -> Self:
        if self.remove and self.compare == "all":
            raise ValueError("remove is for compare=within; with compare=all, name the source that stays in prefer")
        if self.prefer and self.compare == "within":
            raise ValueError("prefer is for compare=all; with compare=within, say what goes in remove")
        try:
            graph: dict[str, list[str]] = {}
            for removal in self.remove:
                graph.setdefault(removal.from_, []).append(removal.like)
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            raise ValueError(f"remove goes in a circle ({' < '.join(error.args[1])}): no copy would stay") from None
        return self

    def sources(self) -> list[str]:
        """See `Step`."""
        return [*super().sources(), *self.prefer, *(name for pair in self.remove for name in (pair.like, pair.from_))]

    def execution_settings(self) -> dict[str, Any]:
        """See `Step`."""
        return {"items_per_task": self.items_per_task}

    @abstractmethod
    def _least_similarity(self) -> float | None:
        """Similarity that sketches of items with a common key must reach; None: a common key suffices."""

    def decide(self, chunks: list[GatheredChunk], folder: Path) -> Generator[list[BuildTask], list[Any], None]:
        """Links, their components if links chain, and decisions.

        Raises DataError for a source that no chunk belongs to.
        """
        ordered, sources = self._ordered(chunks)
        found = yield [
            BuildTask(f"counts-{number:05}", partial(count_items, [chunk.facts for chunk in some]), len(some))
            for number, some in enumerate(batched(ordered, _CHUNKS_PER_TASK))
        ]
        items, work = zip(*(each for some in found for each in some), strict=True)
        plan = self._plan(ordered, sources, items, sum(work))
        ChunkTable.save(folder, [(chunk.number, count, sources.index(chunk.source), chunk.validation, chunk.facts)
                            for chunk, count in zip(ordered, items, strict=True)])  # fmt: skip
        plan.save(folder)
        groups, ranges = range(plan.keys.row_groups), range(plan.ranges)
        yield [
            *(BuildTask(f"chunks-{group:05}", partial(merge_chunk_links, folder, group)) for group in groups),
            *(
                BuildTask(f"keys-{rows:05}-{columns:05}", partial(merge_keys, folder, rows, columns), plan.block)
                for rows, columns in plan.keys.cells()
            ),
        ]
        yield [BuildTask(f"link-{number:05}", partial(link, folder, number), plan.block) for number in ranges]
        if tasks := _gathering(plan, folder, LINKS):
            yield tasks
        if self._chained:
            yield [BuildTask("components", partial(label_components, folder), plan.items, serial=True)]
            yield [
                BuildTask(f"marks-{number:05}", partial(move_marks, folder, number), plan.block) for number in ranges
            ]
        if tasks := _gathering(plan, folder, MOVED if self._chained else MARKS):
            yield tasks
        yield [BuildTask(f"verdicts-{block:05}", partial(decide_block, folder, block, self._chained), plan.block)
               for block in range(plan.blocks)]  # fmt: skip

    def _ordered(self, chunks: list[GatheredChunk]) -> tuple[list[GatheredChunk], list[str]]:
        """(chunks in the order of their items' positions, names of their sources)."""
        sources = list(dict.fromkeys(chunk.source for chunk in sorted(chunks, key=lambda chunk: chunk.number)))
        for name in [*self.prefer, *(name for pair in self.remove for name in (pair.like, pair.from_))]:
            if name not in sources:
                known = ", ".join(sources)
                raise DataError(f"step {self.name} names a source {name!r}, but it works on {known}: correct the name")
        better = {name: rank for rank, name in enumerate(self.prefer)}
        ordered = sorted(chunks, key=lambda u: (not u.validation, better.get(u.source, len(better)), u.number))
        return ordered, sources

    def _plan(self, ordered: list[GatheredChunk], sources: list[str], items: Sequence[int], work: int) -> DedupPlan:
        kinds = {(chunk.source, chunk.validation) for chunk in ordered}
        rules = self._rules(sources, {(sources.index(source), held_out) for source, held_out in kinds})
        like = [f"duplicate of {pair.like}" for pair in self.remove for _ in (_STRONG, _WEAK)]
        return DedupPlan(
            parts=len(ordered),
            items=sum(items),
            held_out=sum(count for chunk, count in zip(ordered, items, strict=True) if chunk.validation),
            ranges=max(1, -(-work // self.items_per_task)),
            block=self.items_per_task,
            together=self.compare == "all",
            rules=rules,
            reasons=["", "duplicate", "duplicate of held-out", *like],
            weak=[_HELD_OUT, *range(_REMOVED + _WEAK, _REMOVED + len(like), 2)],
            least_similarity=self._least_similarity(),
        )

    def _rules(self, sources: list[str], kinds: set[tuple[int, bool]]) -> list[RemovalRule]:
        """Held-out documents go only for held-out ones: rules of the others are weak."""
        if self.compare == "all":
            return []
        rules = [
            RemovalRule(kind=(source, False), near=(other, True), code=_HELD_OUT)
            for source in range(len(sources))
            for other in range(len(sources))
            if source != other
        ]
        for index, pair in enumerate(self.remove):
            like, source = sources.index(pair.like), sources.index(pair.from_)
            rules += [
                RemovalRule(
                    kind=(source, held_out), near=(like, near), code=_REMOVED + 2 * index + (_STRONG if near else _WEAK)
                )
                for held_out in (False, True)
                for near in (False, True)
            ]
        return [rule for rule in rules if rule.kind in kinds and rule.near in kinds]


def _gathering(plan: DedupPlan, folder: Path, kind: str) -> list[BuildTask]:
    """Tasks that merge pairs of a `kind`; none if there are few files of them."""
    return [
        BuildTask(f"{kind}-{rows:05}-{columns:05}", partial(merge_pairs, folder, kind, rows, columns), plan.block)
        for rows, columns in plan.pairs.cells()
    ]
