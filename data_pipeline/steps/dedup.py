"""What exact and fuzzy deduplication share: whom they compare, whose copy stays, and how that is decided.

Items (documents or paragraphs) are equal if they have equal keys. `gather` writes keys to sorted runs; tasks link equal
ones, each in a range of keys; other tasks turn links into verdicts, a byte per item. All hold `items_per_task` at a
time, however many there are, and come to the same end however the work and the documents were cut.
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
    """Two sources, of which one gives way."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)
    like: str = Field(description="the source whose documents stay")
    from_: str = Field(alias="from", description="the source that loses what is like a document of the other")


class DedupStep(GlobalStep):
    """A step that keeps one of several equal or similar items."""

    name: str
    compare: Literal["all", "within"] = Field(
        default="all",
        description="all: documents of all sources with each other; within: those of each source among themselves "
        "(GPT-3). Training documents are compared with held-out ones of all sources either way, and go",
    )
    prefer: list[str] = Field(
        default=[],
        description="with compare=all: the sources whose copy stays, best first; others follow in order",
    )
    remove: list[Removal] = Field(
        default=[],
        max_length=50,
        description="with compare=within: pairs {like: SOURCE, from: SOURCE}; what is like a document of the one is "
        "removed from the other, with all that is like it there (GPT-3: like WebText, from Common Crawl)",
    )
    items_per_task: int = Field(
        default=2**22,
        gt=0,
        description="keys that a task holds in memory, of some 100 bytes each; the result is the same for any",
    )
    _chained: ClassVar[bool]
    """Whether items are alike because both are like a third."""

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
        """As Step.sources."""
        return [*super().sources(), *self.prefer, *(name for pair in self.remove for name in (pair.like, pair.from_))]

    def state(self) -> dict[str, Any]:
        """As Step.state."""
        return {"items_per_task": self.items_per_task}

    @abstractmethod
    def _least_similarity(self) -> float | None:
        """What sketches of items with a common key must say; None: the key is enough."""

    def decide(self, chunks: list[GatheredChunk], folder: Path) -> Generator[list[BuildTask], list[Any], None]:
        """Links, their components where links chain, and verdicts.

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
            RemovalRule(kind=(mine, False), near=(other, True), code=_HELD_OUT)
            for mine in range(len(sources))
            for other in range(len(sources))
            if mine != other
        ]
        for index, pair in enumerate(self.remove):
            like, mine = sources.index(pair.like), sources.index(pair.from_)
            rules += [
                RemovalRule(
                    kind=(mine, held_out), near=(like, near), code=_REMOVED + 2 * index + (_STRONG if near else _WEAK)
                )
                for held_out in (False, True)
                for near in (False, True)
            ]
        return [rule for rule in rules if rule.kind in kinds and rule.near in kinds]


def _gathering(plan: DedupPlan, folder: Path, kind: str) -> list[BuildTask]:
    """Tasks that bring pairs of a `kind` together; none where there are few files of them."""
    return [
        BuildTask(f"{kind}-{rows:05}-{columns:05}", partial(merge_pairs, folder, kind, rows, columns), plan.block)
        for rows, columns in plan.pairs.cells()
    ]
