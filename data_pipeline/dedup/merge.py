"""Merging of many files, in tasks with bounded memory and a bounded number of opens (`grid.py`).

Keys are stored by chunk and read by range of keys; links and marks are stored by range and read by block of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import Positions, append_array, read_arrays, save_arrays, unique_pairs
from data_pipeline.common.atomic import atomic_path
from data_pipeline.dedup.plan import ChunkTable, DedupPlan, load_plan
from data_pipeline.dedup.sorted_runs import runs_in

_NONE = np.zeros((2, 0), np.int64)


def count_items(facts: Sequence[Path]) -> list[list[int]]:
    """Task: [items, keys and links] of each chunk."""
    counts = []
    for path in facts:
        items = work = 0
        for run in runs_in(path):
            items, work = int(run.covers[1]), work + run.keys.shape[1] + run.links.shape[1]
        counts.append([items, work])
    return counts


def merge_chunk_links(folder: Path, group: int) -> None:
    """Task: merges what a group of chunks wrote besides keys: the links found within each, and the sketches, both in
    the order of positions."""
    plan, parts = load_plan(folder), ChunkTable(folder)
    with (
        atomic_path(_chunk_links(folder, group)) as links,
        atomic_path(sketches_file(folder, group)) as sketches,
        links.open("wb") as link_file,
        sketches.open("wb") as sketch_file,
    ):
        held, size = [_NONE], 0
        for part in plan.keys.rows_of(group):
            for run in runs_in(parts.facts(part)):
                held.append(run.links + int(parts.firsts[part]))
                size += run.links.shape[1]
                if plan.least_similarity is not None and run.sketches.size:
                    sketch_file.write(run.sketches.data)
                if size >= plan.block:
                    append_array(link_file, np.concatenate(held, axis=1))
                    held, size = [_NONE], 0
        append_array(link_file, np.concatenate(held, axis=1))


def merge_keys(folder: Path, rows: int, columns: int) -> None:
    """Task: writes one cell of the grid of keys."""
    plan, parts = load_plan(folder), ChunkTable(folder)
    ranges = plan.keys.columns_of(columns)
    found = list(_keys_in_chunks(plan, parts, plan.keys.rows_of(rows), ranges.start, ranges.stop))
    keys, positions = np.concatenate([k for k, _ in found], axis=1), np.concatenate([p for _, p in found])
    order = np.argsort(keys[0], kind="stable")
    save_arrays(_key_cell(folder, rows, columns), keys[:, order], positions[order])


def _keys_in_chunks(
    plan: DedupPlan, parts: ChunkTable, rows: range, begin: int, end: int
) -> Iterator[tuple[NDArray[np.uint64], Positions]]:
    """(keys [columns, some], positions [some]) of ranges begin..end-1, run by run."""
    for part in rows:
        for run in runs_in(parts.facts(part)):  # one at a time is mapped: hence the copies
            first, last = (_border(run.keys[0], border, plan.ranges) for border in (begin, end))
            positions = run.keys[-1, first:last].astype(np.int64) + int(parts.firsts[part])
            yield np.array(run.keys[:-1, first:last]), positions


def keys_of_range(
    folder: Path, plan: DedupPlan, parts: ChunkTable, number: int
) -> Iterator[tuple[NDArray[Any], Positions]]:
    """The keys and positions of one range in all chunks: see `_keys_in_chunks`."""
    if plan.keys.direct:
        yield from _keys_in_chunks(plan, parts, range(plan.parts), number, number + 1)
        return
    columns = plan.keys.group_of(number)
    for rows in range(plan.keys.row_groups):
        keys, positions = read_arrays(_key_cell(folder, rows, columns))
        first, last = (_border(keys[0], border, plan.ranges) for border in (number, number + 1))
        yield np.array(keys[:, first:last]), np.array(positions[first:last])


def merge_pairs(folder: Path, kind: str, rows: int, columns: int) -> None:
    """Task: writes one cell of the grid of pairs of a `kind`: "links", "marks" or "moved" (marks)."""
    plan = load_plan(folder)
    blocks = plan.pairs.columns_of(columns)
    span = blocks.start * plan.block, blocks.stop * plan.block
    held, size = _NONE, 0
    for row in plan.pairs.rows_of(rows):
        for pairs in _pairs_in_row(folder, plan, kind, row, begin=span[0], end=span[1]):
            held, size = np.concatenate([held, pairs], axis=1), held.shape[1] + pairs.shape[1]
            if size > 2 * plan.block:  # the same pairs come again and again
                held = unique_pairs(*held)
    save_arrays(_pair_cell(folder, kind, rows, columns), unique_pairs(*held))


def pairs_of_block(folder: Path, plan: DedupPlan, kind: str, number: int) -> Iterator[NDArray[np.int64]]:
    """[2, some] pairs whose second, a position, lies in block `number`: a file's at a time, sorted by it."""
    span = number * plan.block, (number + 1) * plan.block
    if plan.pairs.direct:
        for row in range(plan.pairs.rows):
            yield from _pairs_in_row(folder, plan, kind, row, begin=span[0], end=span[1])
    else:
        columns = plan.pairs.group_of(number)
        for rows in range(plan.pairs.row_groups):
            yield from _within(read_arrays(_pair_cell(folder, kind, rows, columns)), *span)


def _pairs_in_row(
    folder: Path, plan: DedupPlan, kind: str, row: int, *, begin: int, end: int
) -> Iterator[NDArray[np.int64]]:
    """The pairs of one row: of a range of keys, or of a group of chunks, which has links only."""
    if row >= plan.ranges:
        if kind == "links":
            yield from _within(read_arrays(_chunk_links(folder, row - plan.ranges)), begin, end)
    else:
        yield from _within(read_arrays(pairs_file(folder, kind, row)), begin, end)


def _within(arrays: Iterable[NDArray[np.int64]], begin: int, end: int) -> Iterator[NDArray[np.int64]]:
    """The pairs of each array whose second lies in begin..end-1."""
    for pairs in arrays:
        first, last = np.searchsorted(pairs[1], [begin, end])
        yield pairs[:, first:last]


def pairs_file(folder: Path, kind: str, number: int) -> Path:
    """The file of the pairs of a `kind` in a range: [2, pairs], sorted by the second, a position."""
    return folder / f"{kind}-{number:05}"


def _border(keys: NDArray[np.uint64], number: int, ranges: int) -> int:
    """Where range `number` of `ranges` begins among sorted keys."""
    return len(keys) if number == ranges else int(np.searchsorted(keys, np.uint64((number << 64) // ranges)))


def _key_cell(folder: Path, rows: int, columns: int) -> Path:
    return folder / f"keys-{rows:05}-{columns:05}"


def sketches_file(folder: Path, group: int) -> Path:
    """The file of the sketches of a group of chunks, in order of position."""
    return folder / f"sketches-{group:05}"


def _chunk_links(folder: Path, group: int) -> Path:
    return folder / f"chunk-links-{group:05}"


def _pair_cell(folder: Path, kind: str, rows: int, columns: int) -> Path:
    return folder / f"{kind}-cell-{rows:05}-{columns:05}"
