"""Encoded chunks -> shards. Sorting the documents of a split by key shuffles them over the entire input.

A shard is a range of keys. It reads that range from every chunk, so each shard is written independently. With many
chunks, ranges are merged first (`grid.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.build.chunks import RunTasks
from data_pipeline.build.config import BuildConfig
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


def split_record(plan: SplitPlan, results: list[dict[str, Any]]) -> Split:
    """The manifest's record of a split that was written."""
    tables = [ShardTable.from_arrays(list(read_array_copies(plan.record(shard)))[1:]) for shard in range(plan.shards)]
    table = ShardTable.joined(tables)
    _, documents, tokens = table.sizes.sum(axis=1).tolist()
    return Split(
        documents=documents,
        tokens=tokens,
        text_bytes=sum(result["text_bytes"] for result in results),
        words=sum(result["words"] for result in results),
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
    shards = plan.grid.columns_of(columns)
    span = plan.first_key(shards.start), plan.first_key(shards.stop)
    chunks = plan.chunks(plan.grid.rows_of(rows))
    concatenate([EncodedDocuments.between(chunk, *span) for chunk in chunks]).save(plan.cell(rows, columns))


def _parts(plan: SplitPlan, shard: int) -> Iterator[EncodedDocuments]:
    span = plan.first_key(shard), plan.first_key(shard + 1)
    if plan.grid.direct:
        files = plan.chunks(range(plan.grid.rows))
    else:
        columns = plan.grid.group_of(shard)
        files = [plan.cell(rows, columns) for rows in range(plan.grid.row_groups)]
    for file in files:
        yield EncodedDocuments.between(file, *span)


def _shard(plan: SplitPlan, shard: int, vocabulary: int, member_tokens: int, names: Path) -> dict[str, Any]:
    """Task: writes one shard and the counts of its tokens. Holds its tokens and the facts of its documents in
    memory."""
    _, facts, tokens = merge_by_key(list(_parts(plan, shard)))
    path, files = plan.path(shard), StringTable(names)
    with atomic_path(path) as scratch:
        writer = ShardWriter(scratch, path.name, vocabulary, member_tokens)
        for values, its_tokens in zip(facts.T.tolist(), tokens, strict=True):
            known = dict(zip(FACTS, values, strict=True))
            del known["tokens"]
            writer.add(its_tokens, {"source": files[known.pop("file")], **known})
        made = writer.close()
    table = ShardTable.of(() if made is None else (made,))
    save_arrays(plan.record(shard), writer.counts, *table.arrays())
    if made is None:  # no key fell into its range
        path.unlink()
    return {
        "text_bytes": int(facts[FACTS.index("bytes")].sum()),
        "words": int(facts[FACTS.index("words")].sum()),
    }
