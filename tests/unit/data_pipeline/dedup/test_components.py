"""Connected components in blocks are those found in memory, whatever the blocks and the files of edges."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data_pipeline.common.arrays import unique_pairs
from data_pipeline.dedup.components import connected_components


def _lowest(nodes: int, edges: list[tuple[int, int]]) -> list[int]:
    """The naive way: spread the lowest name until nothing changes."""
    names, changed = list(range(nodes)), True
    while changed:
        changed = False
        for a, b in edges:
            low = min(names[a], names[b])
            changed |= names[a] != low or names[b] != low
            names[a] = names[b] = low
    return names


def _by_block(files: list[NDArray[np.int64]], block: int) -> Callable[[int], Iterator[NDArray[np.int64]]]:
    """The edges that end in a block, of files that are sorted by where they end."""

    def edges(number: int) -> Iterator[NDArray[np.int64]]:
        for pairs in files:
            begin, end = np.searchsorted(pairs[1], [number * block, (number + 1) * block])
            yield pairs[:, begin:end]

    return edges


def _found(nodes: int, files: list[list[tuple[int, int]]], folder: Path, block: int) -> list[int]:
    sorted_files = []
    for edges in files:
        pairs = np.array(edges, np.int64).reshape(-1, 2)
        sorted_files.append(unique_pairs(pairs.min(axis=1), pairs.max(axis=1)))
    connected_components(nodes, _by_block(sorted_files, block), folder / "labels", block)
    return np.fromfile(folder / "labels", np.int64).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    nodes = chance.randrange(1, 60)
    edges = [(chance.randrange(nodes), chance.randrange(nodes)) for _ in range(chance.randrange(nodes + 20))]
    edges = [(a, b) for a, b in edges if a != b]
    files = [edges[part::3] for part in range(3)]
    for block in (1, 4, 7, 1000):
        folder = tmp_path / str(block)
        folder.mkdir()
        assert _found(nodes, files, folder, block) == _lowest(nodes, edges)
        assert [path.name for path in folder.iterdir()] == ["labels"]


@pytest.mark.parametrize("kind", ["chain", "shuffled chain", "star", "star at the end", "pairs across"])
def test_large_and_awkward(kind: str, tmp_path: Path) -> None:
    nodes = 100_000
    places = np.arange(nodes)
    if kind == "shuffled chain":
        np.random.default_rng(0).shuffle(places)
    pairs = np.stack([places[:-1], places[1:]])
    if kind == "star":
        pairs[0] = 0
    elif kind == "star at the end":
        pairs[1] = nodes - 1
    elif kind == "pairs across":
        pairs[1] = places[:0:-1]
    pairs = unique_pairs(pairs.min(axis=0), pairs.max(axis=0))
    pairs = pairs[:, pairs[0] != pairs[1]]
    start = time.monotonic()
    connected_components(nodes, _by_block([pairs], 2**12), tmp_path / "labels", block=2**12)
    assert time.monotonic() - start < 20  # a second; some hours if it were quadratic
    names = np.fromfile(tmp_path / "labels", np.int64)
    if kind == "pairs across":
        names = np.unique(names)
        assert len(names) == nodes - pairs.shape[1]
    else:
        assert not names.any()


def test_no_nodes(tmp_path: Path) -> None:
    connected_components(0, _by_block([], 1), tmp_path / "labels")
    assert (tmp_path / "labels").read_bytes() == b""
