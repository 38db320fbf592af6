"""Connected components of a graph whose nodes and edges don't fit into memory.

Nodes are numbers; a component is named by its lowest one. They are taken in blocks, the highest block first:

1. In a block, all edges that end there (that have their higher node there) are known. Those within the block are
   united in memory. A component of the block that is linked to nodes below it hangs below the lowest of them, its
   anchor; each other node below it is linked to the anchor instead, by a new edge that ends in a lower block.
2. From the lowest block up, a node that hangs below an anchor takes over the anchor's name, which is known by then.

Each edge is read in one block and leaves at most one edge behind, and a block is all that is held in memory, besides
as many edges at a time. Many edges to one node, as in a huge component, leave nothing behind, as it is their anchor.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.arrays import Positions, slices, unique_pairs

Edges = Callable[[int], Iterable[NDArray[np.int64]]]
"""Function from a block's number to the edges that end in it, [2, edges] at a time."""


def connected_components(nodes: int, edges: Edges, labels: Path, block: int = 2**22) -> None:
    """Writes to `labels` [nodes] int64: the lowest node that each is connected with, or its own number.

    `edges` gives those of a block, lower node first: memory maps, as a rule, of which no more is held than what is
    worked on. Memory: some 40 bytes for each node of a `block`, and for as many edges.
    """
    if not nodes:
        labels.write_bytes(b"")
        return
    with tempfile.TemporaryDirectory(dir=labels.parent) as scratch:
        left = _Edges(edges, Path(scratch), block)
        for start in reversed(range(0, nodes, block)):
            _open(labels, nodes)[start : start + block] = _hang(start, min(block, nodes - start), left)
    for start in range(0, nodes, block):
        name = _open(labels, nodes)  # opened again for each block, so that pages of others needn't stay in memory
        names = np.array(name[start : start + block])
        below = np.flatnonzero(names < start)
        names[below] = name[names[below]]
        name[start : start + block] = names


class _Edges:
    """The given edges and those added later, which are in one file for each block that they end in."""

    def __init__(self, given: Edges, folder: Path, block: int) -> None:
        self.given, self.folder, self.block = given, folder, block

    def ending_in(self, start: int) -> Iterator[tuple[Positions, Positions]]:
        """(lower, higher) nodes, about a block of edges at a time."""
        held, size = [], 0
        for edges in self._slices(start):
            held.append(np.array(edges))  # a copy, so that the map can go
            size += edges.shape[1]
            if size >= self.block:
                low, high = np.concatenate(held, axis=1)
                yield low, high
                held, size = [], 0
        if held:
            low, high = np.concatenate(held, axis=1)
            yield low, high

    def add(self, low: Positions, high: Positions) -> None:
        """Adds edges that end in lower blocks."""
        pairs = unique_pairs(low, high)
        blocks = pairs[1] // self.block
        borders = np.flatnonzero(np.diff(blocks, prepend=-1, append=-1))
        for begin, end in itertools.pairwise(borders.tolist()):
            with self._file(int(blocks[begin])).open("ab") as file:
                np.ascontiguousarray(pairs[:, begin:end].T).tofile(file)

    def _slices(self, start: int) -> Iterator[NDArray[np.int64]]:
        for edges in self.given(start // self.block):
            yield from slices(edges, self.block)
        path = self._file(start // self.block)
        if path.exists():
            yield from slices(np.memmap(path, np.int64, "r").view(np.ndarray).reshape(-1, 2).T, self.block)

    def _file(self, number: int) -> Path:
        return self.folder / str(number)


def _hang(start: int, size: int, edges: _Edges) -> Positions:
    """[size] the anchor of each node of the block, or the lowest of its component when that lies within the block."""
    parents = np.arange(size)
    for low, high in edges.ending_in(start):
        within = low >= start
        _unite(parents, low[within] - start, high[within] - start)
    tops = _tops(parents, np.arange(size))
    anchors = np.full(size, start)  # none: no anchor is as high
    for low, high in edges.ending_in(start):
        below = low < start
        np.minimum.at(anchors, tops[high[below] - start], low[below])
    for low, high in edges.ending_in(start):
        anchor = anchors[tops[high - start]]
        below_anchor = (low < start) & (low != anchor)
        if below_anchor.any():
            edges.add(anchor[below_anchor], low[below_anchor])
    anchor = anchors[tops]
    return np.where(anchor < start, anchor, tops + start)


def _unite(parents: Positions, first: Positions, second: Positions) -> None:
    """Joins trees of `parents` until the two ends of every edge are in one; a tree's top is its lowest node."""
    while True:
        first, second = _tops(parents, first), _tops(parents, second)
        apart = first != second
        if not apart.any():
            return
        first, second = first[apart], second[apart]
        np.minimum.at(parents, np.maximum(first, second), np.minimum(first, second))


def _tops(parents: Positions, nodes: Positions) -> Positions:
    """The tops of the trees of `nodes`, which are put right below them; their way there halves in each round."""
    while True:
        up = parents[nodes]
        top = parents[up]
        if np.array_equal(up, top):
            return up
        parents[nodes] = top


def _open(labels: Path, nodes: int) -> NDArray[np.int64]:
    return np.memmap(labels, np.int64, "r+" if labels.exists() else "w+", shape=(nodes,)).view(np.ndarray)
