"""Which items of all units are equal or alike: links between them, found in tasks of bounded memory.

All items have a position: units of held-out documents come first, then those of preferred sources, then the others in
order. Of items that are alike the one with the lowest position stays. A task takes the keys of all units within a
range, an equal part of all keys as these are hashes, and links each item to the first with the same key: as many links
as items, and the same components as if all had been linked with all.

If keys only make candidates, two items are linked when their sketches are alike enough. Items with equal sketches are
linked, one of each kind is compared with the first of its bucket and with the one before it, in an order that depends
on sketches alone, and so on nothing that a cut into units changes. Two that are alike share most of their many buckets,
so that they are missed needs someone unlike them between in each.

Sources that aren't compared with each other otherwise can have rules: items alike to one elsewhere are marked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from data_pipeline.common.arrays import Positions, append, pieces, unique_pairs
from data_pipeline.common.atomic import written
from data_pipeline.dedup.minhash import similarity
from data_pipeline.dedup.sorted_runs import changes, first_of_each, runs_in

_PAIRS_AT_A_TIME = 2**15


class Part(BaseModel):
    """A unit, among those compared."""

    model_config = ConfigDict(frozen=True)
    unit: int
    facts: Path
    first: int
    """Position of its first item."""
    source: int
    held_out: bool


class RemovalRule(BaseModel):
    """Items of one kind go if they are alike to one of another: a kind is a source, held out or not."""

    model_config = ConfigDict(frozen=True)
    kind: tuple[int, bool]
    near: tuple[int, bool]
    code: int
    """Names it in marks."""


class Plan(BaseModel):
    """What all tasks need to know."""

    model_config = ConfigDict(frozen=True)
    parts: list[Part]
    """In order of position."""
    items: int
    held_out: int
    """Items of lower position are held out."""
    ranges: int
    """Tasks."""
    block: int
    """Items that a task may hold at a time."""
    together: bool
    """Whether items of different sources are compared."""
    rules: list[RemovalRule]
    reasons: list[str]
    """By code: 0 stays."""
    weak: list[int]
    """Codes that don't apply to held-out items."""
    least_similarity: float | None
    """Of those with a key in common; None: the key is enough."""


class _Items:
    """The keys of a range, of all units, in order of position where equal."""

    def __init__(self, plan: Plan, number: int) -> None:
        slices, positions, sources, held_out = [], [], [], []
        self.links = []
        """[2, links] those that were found in units, the share of this task."""
        for part in plan.parts:
            for run in runs_in(part.facts):  # one at a time is mapped: hence the copies
                begin, end = (_border(run.keys[0], border, plan.ranges) for border in (number, number + 1))
                slices.append(np.array(run.keys[:-1, begin:end]))
                positions.append(run.keys[-1, begin:end].astype(np.int64) + part.first)
                sources.append(np.full(end - begin, part.source))
                held_out.append(np.full(end - begin, part.held_out))
                self.links.append(_share(run.links, number, plan.ranges) + part.first)
        keys, position = np.concatenate(slices, axis=1), np.concatenate(positions)
        source, held = np.concatenate(sources), np.concatenate(held_out)
        group = np.zeros_like(source) if plan.together else source
        order = np.lexsort((*keys[:0:-1], group, keys[0]))
        self.keys, self.positions = keys[:, order], position[order]
        self.groups, self.sources, self.held_out = group[order], source[order], held[order]

    def of(self, kind: tuple[int, bool]) -> NDArray[np.bool_]:
        """[items] which are of this kind."""
        return np.asarray((self.sources == kind[0]) & (self.held_out == kind[1]))


def link(folder: Path, number: int) -> int:
    """Task: writes links [2, links] (position of the lower, of the higher item; sorted by the latter) and marks [2,
    marks] (code, position; sorted by position) of range `number` to `links_file`; returns how many links."""
    plan = load_plan(folder)
    items = _Items(plan, number)
    known = items.links
    new = changes(items.groups, *items.keys)
    known.append(np.stack([first_of_each(items.positions, new)[~new], items.positions[~new]]))
    if plan.least_similarity is None:
        marks = _marks(plan, items)
    else:
        alike = _Alike(plan, plan.least_similarity)
        known.append(_confirmed(items, new, alike))
        marks = _confirmed_marks(plan, items, alike)
    links = unique_pairs(*np.concatenate(known, axis=1))
    with written(links_file(folder, number)) as path, path.open("wb") as file:
        append(file, links)
        append(file, marks)
    return int(links.shape[1])


def links_file(folder: Path, number: int) -> Path:
    """Where `link` writes."""
    return folder / f"links-{number:05}"


def load_plan(folder: Path) -> Plan:
    """The plan of the tasks that work in `folder`."""
    return Plan.model_validate_json((folder / "plan.json").read_bytes())


class _Alike:
    """Compares items by their sketches, which are read where they lie."""

    def __init__(self, plan: Plan, least: float) -> None:
        runs = [(part, run) for part in plan.parts for run in runs_in(part.facts)]
        self._sketches = [run.sketches for _, run in runs]
        self._width = max(sketches.shape[1] for sketches in self._sketches)  # a run without items has none
        self._firsts = np.array([part.first + int(run.covers[0]) for part, run in runs])
        self._least = least

    def __call__(self, first: Positions, second: Positions) -> NDArray[np.bool_]:
        """[pairs] whether items at these positions are similar enough."""
        found = [
            similarity(self._at(pair[0]), self._at(pair[1])) >= self._least
            for pair in pieces(np.stack([first, second]), _PAIRS_AT_A_TIME)
        ]
        return np.concatenate([np.zeros(0, bool), *found])

    def _at(self, positions: Positions) -> NDArray[np.uint8]:
        run = np.searchsorted(self._firsts, positions, side="right") - 1
        result = np.empty((len(positions), self._width), np.uint8)
        for number in np.unique(run):
            here = run == number
            result[here] = self._sketches[number][positions[here] - self._firsts[number]]
        return result


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


def _marks(plan: Plan, items: _Items) -> NDArray[np.int64]:
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


def _confirmed_marks(plan: Plan, items: _Items, alike: _Alike) -> NDArray[np.int64]:
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


def _border(keys: NDArray[np.uint64], number: int, ranges: int) -> int:
    """Where range `number` of `ranges` begins among sorted keys."""
    return len(keys) if number == ranges else int(np.searchsorted(keys, np.uint64((number << 64) // ranges)))


def _share(array: NDArray[np.int64], number: int, shares: int) -> NDArray[np.int64]:
    size = array.shape[1]
    return array[:, size * number // shares : size * (number + 1) // shares]
