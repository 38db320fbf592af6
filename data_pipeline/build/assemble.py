"""Encoded units -> shards: the documents of a split in the order of their keys, which shuffles them all over the input.

A shard is a range of keys, so it takes a range of every unit, and any shard can be made by itself. Of many units ranges
are brought together first (`grid.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.encode import FACTS, Encoded, encoded_unit, in_order, together
from data_pipeline.build.inputs import InputSource
from data_pipeline.build.passes import Survey
from data_pipeline.build.units import RunTasks
from data_pipeline.common.arrays import TextTable, arrays_in, copies_in, save
from data_pipeline.common.atomic import written
from data_pipeline.common.grid import Grid
from data_pipeline.common.work import BuildTask
from data_pipeline.dataset.manifest import SPLITS, Split, SplitName
from data_pipeline.dataset.shard_table import ShardTable
from data_pipeline.dataset.shards import ShardWriter
from data_pipeline.reading.documents import HASH_BITS

Tokens = list[dict[SplitName, int]]
"""Of each unit, by split."""


@dataclass(frozen=True)
class SplitPlan:
    """The shards of one split of a source. What grows with the units is in files."""

    source: str
    split: SplitName
    least_key: int
    end_key: int
    tokens: int
    grid: Grid
    """Units to shards."""
    folder: Path
    """The build's."""

    @property
    def shards(self) -> int:
        """How many ranges of keys there are."""
        return self.grid.columns

    def border(self, shard: int) -> int:
        """The key that a shard begins with."""
        return self.least_key + (self.end_key - self.least_key) * shard // self.shards

    def units(self, rows: range) -> list[Path]:
        """The files of some of its units."""
        (numbers,) = arrays_in(self._file("units"))
        return [encoded_unit(number, self.folder) for number in numbers[rows.start : rows.stop].tolist()]

    def save_units(self, numbers: list[int]) -> None:
        """For `units`."""
        save(self._file("units"), np.array(numbers, np.int64))

    def cell(self, rows: int, columns: int) -> Path:
        """What a group of units holds for a group of shards."""
        return self._file(f"{rows:05d}-{columns:05d}")

    def path(self, shard: int) -> Path:
        """Of the shard itself."""
        return self.folder / "output" / self.source / f"{self.split}-{shard:05d}.tar"

    def record(self, shard: int) -> Path:
        """Of what is known of it."""
        return self._file(f"shard-{shard:05d}")

    def _file(self, name: str) -> Path:
        return self.folder / "assembling" / f"{self.source}-{self.split}-{name}".lstrip("-")


def plan_splits(
    config: BuildConfig,
    sources: list[InputSource],
    surveys: list[Survey],
    tokens: Tokens,
    cutoff: dict[str, int],
    folder: Path,
) -> list[SplitPlan]:
    """Those of every source, by source and split."""
    found = []
    for source in sources:
        for split in SPLITS:
            units, whole, by_files = [], 0, source.has_validation_files
            for survey, counts in zip(surveys, tokens, strict=True):
                held_out = survey.chunk.validation
                if survey.chunk.source == source.name and not (by_files and held_out != (split == "validation")):
                    units.append(survey.chunk.number)
                    whole += counts[split]
            least, end = (0, cutoff[source.name]) if split == "validation" else (cutoff[source.name], 2**HASH_BITS)
            if by_files:
                least, end = 0, 2**HASH_BITS
            grid = Grid(len(units), -(-whole // config.shard_tokens))
            plan = SplitPlan(source.name, split, least, end, whole, grid, folder)
            plan.save_units(units)
            found.append(plan)
    return found


def assemble(
    config: BuildConfig,
    sources: list[InputSource],
    plans: list[SplitPlan],
    vocabulary: int,
    folder: Path,
    run: RunTasks,
) -> list[list[dict[str, Any]]]:
    """Writes the shards of every plan, in `folder / "output" / its source`; returns what `_shard` does, of each."""
    names = folder / "assembling" / "names-of-files"
    TextTable.write(names, [file.name for source in sources for file in source.inputs])
    cells = [
        BuildTask(
            f"{plan.source}-{plan.split}-{rows:05d}-{columns:05d}".lstrip("-"),
            partial(_cell, plan, rows, columns),
            plan.tokens // (plan.grid.row_groups * plan.grid.column_groups),
        )
        for plan in plans
        for rows, columns in plan.grid.cells()
    ]
    if cells:
        run("gathering", cells)
    tasks = [
        BuildTask(
            f"{plan.source}-{plan.path(shard).stem}".lstrip("-"),
            partial(_shard, plan, shard, vocabulary, config.member_tokens, names),
            plan.tokens // plan.shards,
        )
        for plan in plans
        for shard in range(plan.shards)
    ]
    results = iter(run("writing", tasks))
    return [[next(results) for _ in range(plan.shards)] for plan in plans]


def split_of(plan: SplitPlan, results: list[dict[str, Any]]) -> Split:
    """What a manifest says of the shards that were written."""
    tables = [ShardTable.from_arrays(list(copies_in(plan.record(shard)))[1:]) for shard in range(plan.shards)]
    table = ShardTable.joined(tables)
    _, documents, tokens = table.sizes.sum(axis=1).tolist()
    return Split(
        documents=documents,
        tokens=tokens,
        text_bytes=sum(result["text_bytes"] for result in results),
        words=sum(result["words"] for result in results),
        shards=table,
    )


def unigram(plan: SplitPlan, vocabulary: int) -> NDArray[np.int64]:
    """[vocabulary] how often each token occurs in a split."""
    counts = np.zeros(vocabulary, np.int64)
    for shard in range(plan.shards):
        counts += next(arrays_in(plan.record(shard)))
    return counts


def _cell(plan: SplitPlan, rows: int, columns: int) -> None:
    """Task: brings together what a group of units holds for a group of shards."""
    shards = plan.grid.columns_of(columns)
    span = plan.border(shards.start), plan.border(shards.stop)
    units = plan.units(plan.grid.rows_of(rows))
    together([Encoded.between(unit, *span) for unit in units]).save(plan.cell(rows, columns))


def _parts(plan: SplitPlan, shard: int) -> Iterator[Encoded]:
    span = plan.border(shard), plan.border(shard + 1)
    if plan.grid.direct:
        files = plan.units(range(plan.grid.rows))
    else:
        columns = plan.grid.group_of(shard)
        files = [plan.cell(rows, columns) for rows in range(plan.grid.row_groups)]
    for file in files:
        yield Encoded.between(file, *span)


def _shard(plan: SplitPlan, shard: int, vocabulary: int, member_tokens: int, names: Path) -> dict[str, Any]:
    """Task: writes one shard, and how often each token is in it. Holds its tokens and what is known
    of its documents in memory."""
    _, facts, tokens = in_order(list(_parts(plan, shard)))
    path, files = plan.path(shard), TextTable(names)
    with written(path) as scratch:
        writer = ShardWriter(scratch, path.name, vocabulary, member_tokens)
        for values, its_tokens in zip(facts.T.tolist(), tokens, strict=True):
            known = dict(zip(FACTS, values, strict=True))
            del known["tokens"]
            writer.add(its_tokens, {"source": files[known.pop("file")], **known})
        made = writer.close()
    table = ShardTable.of(() if made is None else (made,))
    save(plan.record(shard), writer.counts, *table.arrays())
    if made is None:  # no key fell into its range
        path.unlink()
    return {
        "text_bytes": int(facts[FACTS.index("bytes")].sum()),
        "words": int(facts[FACTS.index("words")].sum()),
    }
