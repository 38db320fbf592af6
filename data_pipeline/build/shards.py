"""Encoded chunks -> shards. Sorting the documents of a split by key shuffles them over the entire input.

A shard is a range of keys. It reads that range from every chunk, so each shard is written independently. With many
chunks, ranges are merged first (`grid.py`). Before, each range gives its copies of texts away, to the shards in which
they are to lie (`copies.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.chunks import RunTasks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.copies import copy_numbers, places_of_copies
from data_pipeline.build.encode import FACTS, EncodedDocuments, concatenate, encoded_file, merge_by_key
from data_pipeline.build.inputs import InputSource
from data_pipeline.build.passes import ChunkSummary
from data_pipeline.common.arrays import StringTable, read_array_copies, read_arrays, save_arrays
from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.grid import Grid
from data_pipeline.common.tasks import BuildTask
from data_pipeline.dataset.manifest import SPLITS, Split, SplitName
from data_pipeline.dataset.shard_table import ShardTable
from data_pipeline.dataset.shard_writer import ShardWriter
from data_pipeline.reading.documents import HASH_BITS

_OF_DOCUMENT = ("index", "part", "bytes", "words")  # facts in the record of a document
_SIZES = {"text_bytes": "bytes", "words": "words", "characters": "characters", "unicode_words": "unicode_words"}
"""Sizes of a split -> the facts of its documents that they are the sums of."""

Tokens = list[dict[SplitName, int]]
"""Number of tokens of each chunk, by split."""


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """The shards of one split of a source. Data that grows with the chunks is in files."""

    source: str
    split: SplitName
    least_key: int
    end_key: int
    tokens: int
    grid: Grid
    """Grid of chunks (rows) and shards (columns)."""
    folder: Path
    """The build's scratch folder."""
    num_givers: int = 0
    """Shards that give copies of texts away."""

    @property
    def shards(self) -> int:
        """Number of shards, each a range of keys."""
        return self.grid.columns

    def first_key(self, shard: int) -> int:
        """The key that a shard begins with."""
        return self.least_key + (self.end_key - self.least_key) * shard // self.shards

    def chunks(self, rows: range) -> list[Path]:
        """The encoded files of its chunks in `rows`."""
        (numbers,) = read_arrays(self._file("chunks"))
        return [encoded_file(number, self.folder) for number in numbers[rows.start : rows.stop].tolist()]

    def save_chunks(self, numbers: list[int]) -> None:
        """Stores the chunks' numbers for `chunks`."""
        save_arrays(self._file("chunks"), np.array(numbers, np.int64))

    def cell(self, rows: int, columns: int) -> Path:
        """The file of a group of chunks' documents for a group of shards."""
        return self._file(f"{rows:05d}-{columns:05d}")

    @property
    def copies_grid(self) -> Grid:
        """Grid of the shards that give copies away (rows) and of all shards, which take them (columns)."""
        return Grid(self.num_givers, self.shards)

    def givers(self, rows: range) -> list[Path]:
        """The files of the copies that the shards in `rows` of the grid give away."""
        (numbers,) = read_arrays(self._file("givers"))
        return [self.copies(shard) for shard in numbers[rows.start : rows.stop].tolist()]

    def with_givers(self, shards: list[int]) -> SplitPlan:
        """The plan when it is known which shards give copies away."""
        save_arrays(self._file("givers"), np.array(shards, np.int64))
        return replace(self, num_givers=len(shards))

    def copies(self, shard: int) -> Path:
        """The file of the copies that a shard gives away, by their places."""
        return self._file(f"copies-{shard:05d}")

    def copies_cell(self, rows: int, columns: int) -> Path:
        """The file of the copies that a group of shards gives to another."""
        return self._file(f"copies-{rows:05d}-{columns:05d}")

    def path(self, shard: int) -> Path:
        """The file of a shard."""
        return self.folder / "output" / self.source / f"{self.split}-{shard:05d}.tar"

    def record(self, shard: int) -> Path:
        """The file of a shard's token counts and its row of the shard table."""
        return self._file(f"shard-{shard:05d}")

    def _file(self, name: str) -> Path:
        return self.folder / "assembling" / f"{self.source}-{self.split}-{name}".lstrip("-")


def plan_splits(
    config: BuildConfig,
    sources: list[InputSource],
    *,
    summaries: list[ChunkSummary],
    tokens: Tokens,
    cutoff: dict[str, int],
    folder: Path,
) -> list[SplitPlan]:
    """Plans of all splits, by source, then by split."""
    plans = []
    for source in sources:
        for split in SPLITS:
            chunks, total, by_files = [], 0, source.has_validation_files
            for summary, counts in zip(summaries, tokens, strict=True):
                held_out = summary.chunk.validation
                if summary.chunk.source == source.name and not (by_files and held_out != (split == "validation")):
                    chunks.append(summary.chunk.number)
                    total += counts[split]
            least, end = (0, cutoff[source.name]) if split == "validation" else (cutoff[source.name], 2**HASH_BITS)
            if by_files:
                least, end = 0, 2**HASH_BITS
            grid = Grid(len(chunks), -(-total // config.shard_tokens))
            plan = SplitPlan(
                source=source.name, split=split, least_key=least, end_key=end, tokens=total, grid=grid, folder=folder
            )
            plan.save_chunks(chunks)
            plans.append(plan)
    return plans


def write_shards(
    config: BuildConfig,
    sources: list[InputSource],
    plans: list[SplitPlan],
    *,
    vocabulary: int,
    folder: Path,
    run: RunTasks,
) -> list[list[dict[str, Any]]]:
    """Writes the shards of every plan to `folder / "output" / source`; returns the counts of each (see `_shard`)."""
    names = folder / "assembling" / "names-of-files"
    StringTable.write(names, [file.name for source in sources for file in source.inputs])

    def cell_tasks(
        work: Callable[[SplitPlan, int, int], None], grid_of: Callable[[SplitPlan], Grid]
    ) -> list[BuildTask]:
        return [
            BuildTask(
                f"{plan.source}-{plan.split}-{rows:05d}-{columns:05d}".lstrip("-"),
                partial(work, plan, rows, columns),
                plan.tokens // (grid_of(plan).row_groups * grid_of(plan).column_groups),
            )
            for plan in plans
            for rows, columns in grid_of(plan).cells()
        ]

    def shard_tasks(work: Callable[[SplitPlan, int], Any]) -> list[BuildTask]:
        return [
            BuildTask(
                f"{plan.source}-{plan.path(shard).stem}".lstrip("-"),
                partial(work, plan, shard),
                plan.tokens // plan.shards,
            )
            for plan in plans
            for shard in range(plan.shards)
        ]

    if cells := cell_tasks(_cell, lambda plan: plan.grid):
        run("gathering", cells)
    found = iter(run("copies", shard_tasks(_copies)))
    plans = [plan.with_givers([shard for shard in range(plan.shards) if next(found)]) for plan in plans]
    if cells := cell_tasks(_copies_cell, lambda plan: plan.copies_grid):
        run("gathering-copies", cells)
    write = partial(_shard, vocabulary=vocabulary, member_tokens=config.member_tokens, names=names)
    results = iter(run("writing", shard_tasks(write)))
    return [[next(results) for _ in range(plan.shards)] for plan in plans]


def split_record(plan: SplitPlan, results: list[dict[str, Any]]) -> Split:
    """The manifest's record of a split that was written."""
    tables = [ShardTable.from_arrays(list(read_array_copies(plan.record(shard)))[1:]) for shard in range(plan.shards)]
    table = ShardTable.joined(tables)
    _, documents, tokens = table.sizes.sum(axis=1).tolist()
    return Split(
        documents=documents,
        tokens=tokens,
        **{name: sum(result[name] for result in results) for name in (*_SIZES, "copies")},
        shards=table,
    )


def unigram_counts(plan: SplitPlan, vocabulary: int) -> NDArray[np.int64]:
    """[vocabulary] how often each token occurs in a split."""
    counts = np.zeros(vocabulary, np.int64)
    for shard in range(plan.shards):
        counts += next(read_arrays(plan.record(shard)))
    return counts


def _cell(plan: SplitPlan, rows: int, columns: int) -> None:
    """Task: merges a group of chunks' documents for a group of shards."""
    _merge(plan, plan.chunks(plan.grid.rows_of(rows)), plan.grid.columns_of(columns), plan.cell(rows, columns))


def _copies_cell(plan: SplitPlan, rows: int, columns: int) -> None:
    """Task: merges what a group of shards gives to another."""
    grid = plan.copies_grid
    _merge(plan, plan.givers(grid.rows_of(rows)), grid.columns_of(columns), plan.copies_cell(rows, columns))


def _merge(plan: SplitPlan, files: list[Path], shards: range, path: Path) -> None:
    span = plan.first_key(shards.start), plan.first_key(shards.stop)
    concatenate([EncodedDocuments.between(file, *span) for file in files]).save(path)


def _files(plan: SplitPlan, shard: int) -> list[Path]:
    """The files that hold the documents of a shard's keys."""
    if plan.grid.direct:
        return plan.chunks(range(plan.grid.rows))
    columns = plan.grid.group_of(shard)
    return [plan.cell(rows, columns) for rows in range(plan.grid.row_groups)]


def _copies_files(plan: SplitPlan, shard: int) -> list[Path]:
    """The files that hold the copies that are to lie in a shard."""
    grid = plan.copies_grid
    if grid.direct:
        return plan.givers(range(grid.rows))
    return [plan.copies_cell(rows, grid.group_of(shard)) for rows in range(grid.row_groups)]


def _copies(plan: SplitPlan, shard: int) -> int:
    """Task: finds the copies among the documents of a shard's keys, and writes them by their places; returns their
    number."""
    files, span = _files(plan, shard), (plan.first_key(shard), plan.first_key(shard + 1))
    numbers = copy_numbers([EncodedDocuments.keys_between(file, *span) for file in files])
    found = []
    for file, its in zip(files, numbers, strict=True):
        if (copies := its > 0).any():
            part = EncodedDocuments.between(file, *span).chosen(copies)
            places = places_of_copies(part.keys, its[copies], plan.least_key, plan.end_key)
            found.append(part._replace(keys=places))
    if found:
        concatenate(found).save(plan.copies(shard))
    return sum(len(part.keys) for part in found)


def _shard(plan: SplitPlan, shard: int, vocabulary: int, member_tokens: int, names: Path) -> dict[str, Any]:
    """Task: writes one shard and the counts of its tokens. Holds its tokens and the facts of its documents in
    memory."""
    span = plan.first_key(shard), plan.first_key(shard + 1)
    parts = [EncodedDocuments.between(file, *span) for file in _files(plan, shard)]
    numbers = copy_numbers([part.keys for part in parts])
    parts = [part.chosen(its == 0) for part, its in zip(parts, numbers, strict=True)]
    parts += [EncodedDocuments.between(file, *span) for file in _copies_files(plan, shard)]
    _, facts, tokens = merge_by_key(parts)
    path, files = plan.path(shard), StringTable(names)
    with atomic_path(path) as scratch:
        writer = ShardWriter(scratch, path.name, vocabulary, member_tokens)
        for values, its_tokens in zip(facts.T.tolist(), tokens, strict=True):
            known = dict(zip(FACTS, values, strict=True))
            writer.add(its_tokens, {"source": files[known["file"]], **{name: known[name] for name in _OF_DOCUMENT}})
        made = writer.close()
    table = ShardTable.of(() if made is None else (made,))
    save_arrays(plan.record(shard), writer.counts, *table.arrays())
    if made is None:  # no key fell into its range
        path.unlink()
    return {
        **{name: int(facts[FACTS.index(fact)].sum()) for name, fact in _SIZES.items()},
        "copies": sum(int(np.count_nonzero(its)) for its in numbers),
    }
