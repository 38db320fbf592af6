"""Links between equal or similar items of all chunks, found in tasks with bounded memory.

Of similar items, the one with the lowest position is kept. A task takes the keys of all chunks within a range, an equal
share of all keys since these are hashes, and links each item to the first with the same key: that makes as many links
as items, and the same components as linking all with all.

If keys only make candidates, two items are linked when their sketches are alike enough. Items with equal sketches are
linked, one of each kind is compared with the first of its bucket and with the one before it, in an order that depends
on sketches alone, and so not on how the input was split into chunks. Similar documents share most of their many
buckets, so a pair is missed only if a dissimilar document lies between the two in each of them.

Sources that aren't compared with each other otherwise can have rules: items alike to one elsewhere are marked.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import Positions, save_arrays, slices, unique_pairs
from data_pipeline.dedup.merge import keys_of_range, pairs_file, sketches_file
from data_pipeline.dedup.minhash import SKETCH_HASHES, similarity
from data_pipeline.dedup.plan import ChunkTable, DedupPlan, load_plan
from data_pipeline.dedup.sorted_runs import changes, first_of_each

_PAIRS_AT_A_TIME = 2**15
_OPEN_FILES = 256  # of sketches, that a task holds


class _Items:
    """The keys of a range, of all chunks, in order of position where equal."""

    def __init__(self, folder: Path, plan: DedupPlan, number: int) -> None:
        parts = ChunkTable(folder)
        found = list(keys_of_range(folder, plan, parts, number))
        keys, position = np.concatenate([k for k, _ in found], axis=1), np.concatenate([p for _, p in found])
        part = parts.of(position)
        source, held = parts.sources[part], parts.held_out[part] > 0
        group = np.zeros_like(source) if plan.together else source
        order = np.lexsort((*keys[:0:-1], group, keys[0]))
        self.keys, self.positions = keys[:, order], position[order]
        self.groups, self.sources, self.held_out = group[order], source[order], held[order]

    def of(self, kind: tuple[int, bool]) -> NDArray[np.bool_]:
        """[items] which are of this kind."""
        return np.asarray((self.sources == kind[0]) & (self.held_out == kind[1]))


def link(folder: Path, number: int) -> int:
    """Task: writes links [2, links] (position of the lower, of the higher item; sorted by the latter) and marks [2,
    marks] (code, position; sorted by position) of range `number` to `pairs_file`; returns how many links."""
    plan = load_plan(folder)
    items = _Items(folder, plan, number)
    new = changes(items.groups, *items.keys)
    link_lists = [np.stack([first_of_each(items.positions, new)[~new], items.positions[~new]])]
    if plan.least_similarity is None:
        marks = _marks(plan, items)
    else:
        alike = _Alike(folder, plan, plan.least_similarity)
        link_lists.append(_confirmed(items, new, alike))
        marks = _confirmed_marks(plan, items, alike)
    links = unique_pairs(*np.concatenate(link_lists, axis=1))
    save_arrays(pairs_file(folder, "links", number), links)
    save_arrays(pairs_file(folder, "marks", number), marks)
    return int(links.shape[1])


class _Alike:
    """Compares items by their sketches, which are read where they lie."""

    def __init__(self, folder: Path, plan: DedupPlan, least: float) -> None:
        firsts = ChunkTable(folder).firsts
        groups = range(plan.keys.row_groups)
        self._firsts = np.array([firsts[plan.keys.rows_of(group).start] for group in groups])
        self._open = functools.lru_cache(_OPEN_FILES)(lambda group: _open_sketches(sketches_file(folder, group)))
        self._least = least

    def __call__(self, first: Positions, second: Positions) -> NDArray[np.bool_]:
        """[pairs] whether items at these positions are similar enough."""
        similar = [
            similarity(self._at(pair[0]), self._at(pair[1])) >= self._least
            for pair in slices(np.stack([first, second]), _PAIRS_AT_A_TIME)
        ]
        return np.concatenate([np.zeros(0, bool), *similar])

    def _at(self, positions: Positions) -> NDArray[np.uint8]:
        group = np.searchsorted(self._firsts, positions, side="right") - 1
        result = np.empty((len(positions), SKETCH_HASHES), np.uint8)
        for number in np.unique(group).tolist():
            here = group == number
            result[here] = self._open(number)[positions[here] - self._firsts[number]]
        return result


def _open_sketches(path: Path) -> NDArray[np.uint8]:
    return np.memmap(path, np.uint8, "r").view(np.ndarray).reshape(-1, SKETCH_HASHES)


def _confirmed(items: _Items, new: NDArray[np.bool_], alike: _Alike) -> NDArray[np.int64]:
    """[2, links] between items of a bucket that have different sketches."""
    kinds = np.flatnonzero(new)
    positions = items.positions[kinds]
    starts = changes(items.groups[kinds], items.keys[0][kinds])
    others = np.flatnonzero(~starts)
    pairs = np.stack([np.concatenate([first_of_each(positions, starts)[others], positions[others - 1]]),
                      np.tile(positions[others], 2)])  # fmt: skip
    pairs = unique_pairs(pairs.min(axis=0), pairs.max(axis=0))
    return pairs[:, alike(pairs[0], pairs[1])]


def _marks(plan: DedupPlan, items: _Items) -> NDArray[np.int64]:
    """[2, marks] items with a key that an item of the other kind has."""
    codes, positions = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    if plan.rules:
        bucket = _buckets(*items.keys)
        for rule in plan.rules:
            has = np.zeros(len(bucket), bool)
            has[bucket[items.of(rule.near)]] = True
            positions.append(items.positions[items.of(rule.kind) & has[bucket]])
            codes.append(np.full(len(positions[-1]), rule.code))
    return unique_pairs(np.concatenate(codes), np.concatenate(positions))


def _confirmed_marks(plan: DedupPlan, items: _Items, alike: _Alike) -> NDArray[np.int64]:
    """[2, marks] items with the sketch of one of the other kind, or similar to the first one in their bucket."""
    marks = [_marks(plan, items)]
    if plan.rules:
        bucket = _buckets(items.keys[0])
        for rule in plan.rules:
            near = np.flatnonzero(items.of(rule.near))[::-1]
            first = np.full(len(bucket), -1)
            first[bucket[near]] = items.positions[near]
            mine = np.flatnonzero(items.of(rule.kind) & (first[bucket] >= 0))
            pairs = unique_pairs(first[bucket[mine]], items.positions[mine])
            found = pairs[1, alike(pairs[0], pairs[1])]
            marks.append(np.stack([np.full(len(found), rule.code), found]))
    return unique_pairs(*np.concatenate(marks, axis=1))


def _buckets(*columns: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[rows] numbers that are equal for equal rows."""
    order = np.lexsort(columns[::-1])
    result = np.empty(len(order), np.int64)
    result[order] = np.cumsum(changes(*(column[order] for column in columns))) - 1
    return result
