"""What becomes of each item, from links and marks: a byte per item, in the order of positions, in blocks.

A unit's items lie together, so a step that runs on it reads their bytes and no others.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import append, arrays_in, unique_pairs
from data_pipeline.common.atomic import written
from data_pipeline.dedup.components import components
from data_pipeline.dedup.duplicate_links import Plan, links_file, load_plan

STAYS, DUPLICATE = 0, 1
"""Codes. Higher ones say that an item goes for one of elsewhere."""
_NONE = np.uint8(255)  # as yet


def join(folder: Path) -> None:
    """Task: names the component of each item, in the file `labels`."""
    plan = load_plan(folder)
    links = [partial(_links, folder, number) for number in range(plan.ranges)]
    with written(_labels(folder)) as path:
        components(plan.items, links, path, plan.block)


def move_marks(folder: Path, number: int) -> None:
    """Task: has the marks of range `number` say the first item of the component instead of the one that was marked."""
    plan = load_plan(folder)
    _, (codes, positions) = arrays_in(links_file(folder, number))
    firsts = _open_labels(folder, plan)[positions]
    with written(_moved(folder, number)) as path, path.open("wb") as file:
        append(file, unique_pairs(codes, firsts))


def judge(folder: Path, number: int, chained: bool) -> None:
    """Task: writes the verdicts on block `number`.

    Either items of a component go but for the first, and for it what its component is marked with (`chained`), or the
    later item of each link goes, and each for itself what it is marked with.
    """
    plan = load_plan(folder)
    begin = number * plan.block
    end = min(begin + plan.block, plan.items)
    codes = np.full(end - begin, _NONE)
    for task in range(plan.ranges):
        links, own_marks = arrays_in(links_file(folder, task))
        marks = next(arrays_in(_moved(folder, task))) if chained else own_marks
        code, position = _within(marks, begin, end)
        holds = (position >= plan.held_out) | ~np.isin(code, plan.weak)
        np.minimum.at(codes, position[holds] - begin, code[holds].astype(np.uint8))
        if not chained:
            codes[_within(links, begin, end)[1] - begin] = DUPLICATE
    if chained:
        codes[_open_labels(folder, plan)[begin:end] != np.arange(begin, end)] = DUPLICATE
    codes[codes == _NONE] = STAYS
    with written(_verdicts(folder, number)) as path:
        codes.tofile(path)


def verdicts(folder: Path, unit: int) -> tuple[NDArray[np.uint8], list[str]]:
    """(code of each item of a unit, what codes mean)."""
    plan = load_plan(folder)
    (index,) = (index for index, part in enumerate(plan.parts) if part.unit == unit)
    firsts = [*(part.first for part in plan.parts), plan.items]
    begin, end = firsts[index], firsts[index + 1]
    codes = [np.zeros(0, np.uint8)]
    while begin < end:
        block, offset = divmod(begin, plan.block)
        codes.append(np.fromfile(_verdicts(folder, block), np.uint8, min(plan.block - offset, end - begin), "", offset))
        begin += len(codes[-1])
    return np.concatenate(codes), plan.reasons


def _links(folder: Path, number: int) -> NDArray[np.int64]:
    links: NDArray[np.int64] = next(arrays_in(links_file(folder, number)))
    return links


def _within(pairs: NDArray[np.int64], begin: int, end: int) -> NDArray[np.int64]:
    """Those whose second lies in begin..end-1."""
    first, last = np.searchsorted(pairs[1], [begin, end])
    return pairs[:, first:last]


def _labels(folder: Path) -> Path:
    return folder / "labels"


def _open_labels(folder: Path, plan: Plan) -> NDArray[np.int64]:
    return np.memmap(_labels(folder), np.int64, "r", shape=(plan.items,)).view(np.ndarray)


def _moved(folder: Path, number: int) -> Path:
    return folder / f"moved-{number:05}"


def _verdicts(folder: Path, number: int) -> Path:
    return folder / f"verdicts-{number:05}"
