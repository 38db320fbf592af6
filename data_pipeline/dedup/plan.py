"""The plan of a deduplication, which its tasks read: a few numbers, and the chunks to compare, as arrays.

All items have a position: chunks of held-out documents come first, then those of preferred sources, then the others in
order. A task reads of the chunks' arrays what it looks at, so its cost does not grow with the number of chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from data_pipeline.common.arrays import Positions, StringTable, read_arrays, save_arrays
from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.grid import Grid

_PLAN, _PARTS, _FACTS = "plan.json", "parts", "facts-of-parts"


class RemovalRule(BaseModel):
    """Items of one kind are removed if they are similar to one of another; a kind is (source, whether held out)."""

    model_config = ConfigDict(frozen=True)
    kind: tuple[int, bool]
    near: tuple[int, bool]
    code: int
    """The rule's code in marks."""


class DedupPlan(BaseModel):
    """Facts that all tasks of a deduplication need, except the chunks (`ChunkTable`)."""

    model_config = ConfigDict(frozen=True)
    parts: int
    """Number of chunks to compare."""
    items: int
    held_out: int
    """Number of held-out items, which have the lowest positions."""
    ranges: int
    """Number of ranges of keys, one task each."""
    block: int
    """Number of items that a task may hold in memory."""
    together: bool
    """Whether items of different sources are compared."""
    rules: list[RemovalRule]
    reasons: list[str]
    """Reason for dropping an item, by code; code 0 keeps it."""
    weak: list[int]
    """Codes that don't apply to held-out items."""
    least_similarity: float | None
    """Similarity above which items with a common key are duplicates; None: a common key suffices."""

    def save(self, folder: Path) -> None:
        """Writes the file that `load_plan` reads."""
        with atomic_path(folder / _PLAN) as path:
            path.write_text(self.model_dump_json())

    @property
    def blocks(self) -> int:
        """Number of blocks of items, each decided by one task."""
        return -(-self.items // self.block)

    @property
    def keys(self) -> Grid:
        """Parts to ranges of keys."""
        return Grid(self.parts, self.ranges)

    @property
    def pairs(self) -> Grid:
        """Files of links and marks to blocks of items: those of ranges, then those of groups of parts."""
        return Grid(self.ranges + self.keys.row_groups, self.blocks)


class ChunkTable:
    """The chunks to compare, in order of position: memory-mapped arrays in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.firsts, self.sources, self.held_out, self._chunks, self._numbers = read_arrays(folder / _PARTS)
        self._facts: StringTable | None = None

    @staticmethod
    def save(folder: Path, chunks: Sequence[tuple[int, int, int, bool, Path]]) -> None:
        """`chunks` in order of position: (number, items, source, whether it is held out, its facts)."""
        numbers, items, sources, held_out, facts = zip(*chunks, strict=True)
        firsts = np.concatenate([[0], np.cumsum(items, dtype=np.int64)]).astype(np.int64)
        order = np.argsort(numbers)
        save_arrays(folder / _PARTS, firsts, np.array(sources, np.int64), np.array(held_out, np.uint8),
             np.array(numbers, np.int64)[order], order.astype(np.int64))  # fmt: skip
        StringTable.write(folder / _FACTS, [str(path) for path in facts])

    def facts(self, part: int) -> Path:
        """The file of the chunk's facts."""
        self._facts = self._facts or StringTable(self._folder / _FACTS)
        return Path(self._facts[part])

    def span(self, chunk: int) -> tuple[int, int]:
        """Positions of a chunk's items: the first, and the one after the last."""
        part = self._numbers[np.searchsorted(self._chunks, chunk)]
        first, end = self.firsts[part : part + 2].tolist()
        return first, end

    def of(self, positions: Positions) -> Positions:
        """[items] the part that each is in."""
        return np.searchsorted(self.firsts, positions, side="right") - 1


def load_plan(folder: Path) -> DedupPlan:
    """The plan of the tasks that work in `folder`."""
    return DedupPlan.model_validate_json((folder / _PLAN).read_bytes())
