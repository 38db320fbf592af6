"""Decisions on each item, from links and marks: a byte per item, in the order of positions, in blocks.

A chunk's items lie together, so a step that runs on it reads their bytes and no others.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import read_arrays, save_arrays, unique_pairs
from data_pipeline.common.atomic import atomic_path
from data_pipeline.dedup.components import connected_components
from data_pipeline.dedup.merge import pairs_file, pairs_of_block
from data_pipeline.dedup.plan import ChunkTable, DedupPlan, load_plan

LINKS, MARKS, MOVED = "links", "marks", "moved"
"""Kinds of pairs: links between items, marks of items, and marks moved to the first of each component."""
KEPT, DUPLICATE = 0, 1
"""Codes. Higher ones say that an item goes for one of elsewhere."""
_NONE = np.uint8(255)  # as yet


def label_components(folder: Path) -> None:
    """Task: names the component of each item, in the file `labels`."""
    plan = load_plan(folder)
    with atomic_path(_labels(folder)) as path:
        connected_components(plan.items, partial(pairs_of_block, folder, plan, LINKS), path, plan.block)


def move_marks(folder: Path, number: int) -> None:
    """Task: has the marks of range `number` say the first item of the component instead of the one that was marked."""
    plan = load_plan(folder)
    codes, positions = next(read_arrays(pairs_file(folder, MARKS, number)))
    firsts = _open_labels(folder, plan)[positions]
    save_arrays(pairs_file(folder, MOVED, number), unique_pairs(codes, firsts))


def decide_block(folder: Path, number: int, chained: bool) -> None:
    """Task: writes the verdicts on block `number`.

    Either items of a component go but for the first, and for it what its component is marked with (`chained`), or the
    later item of each link goes, and each for itself what it is marked with.
    """
    plan = load_plan(folder)
    begin = number * plan.block
    end = min(begin + plan.block, plan.items)
    codes = np.full(end - begin, _NONE)
    for code, position in pairs_of_block(folder, plan, MOVED if chained else MARKS, number):
        holds = (position >= plan.held_out) | ~np.isin(code, plan.weak)
        np.minimum.at(codes, position[holds] - begin, code[holds].astype(np.uint8))
    for _, later in pairs_of_block(folder, plan, LINKS, number) if not chained else ():
        codes[later - begin] = DUPLICATE
    if chained:
        codes[_open_labels(folder, plan)[begin:end] != np.arange(begin, end)] = DUPLICATE
    codes[codes == _NONE] = KEPT
    with atomic_path(_verdicts(folder, number)) as path:
        codes.tofile(path)


def load_decisions(folder: Path, chunk: int) -> tuple[NDArray[np.uint8], list[str]]:
    """(code of each item of a chunk, what codes mean)."""
    plan = load_plan(folder)
    begin, end = ChunkTable(folder).span(chunk)
    codes = [np.zeros(0, np.uint8)]
    while begin < end:
        block, offset = divmod(begin, plan.block)
        codes.append(np.fromfile(_verdicts(folder, block), np.uint8, min(plan.block - offset, end - begin), "", offset))
        begin += len(codes[-1])
    return np.concatenate(codes), plan.reasons


def _labels(folder: Path) -> Path:
    return folder / "labels"


def _open_labels(folder: Path, plan: DedupPlan) -> NDArray[np.int64]:
    return np.memmap(_labels(folder), np.int64, "r", shape=(plan.items,)).view(np.ndarray)


def _verdicts(folder: Path, number: int) -> Path:
    return folder / f"verdicts-{number:05}"
