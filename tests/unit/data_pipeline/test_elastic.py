"""Elastic and exact: a run killed anywhere, that goes on with other ranks, threads and batches, sees every sample of
the uninterrupted run once and in its order. Random cases, and an order written down naively to compare with."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Batch, Cursor, Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import SampleStream, load
from data_pipeline.order.order import permute, round_keys

REAL_CASES = 5
CASES = pytest.mark.parametrize("cases", [20, pytest.param(120, marks=pytest.mark.slow)])
Sizes = Callable[[int], int]
Phases = list[tuple[int, list[float]]]


@dataclass(frozen=True)
class Case:
    """A run, drawn by a seed."""

    samples: list[int]
    """in an epoch of each source"""
    weights: list[float]
    phases: Phases
    seed: int
    sizes: Sizes
    total: int
    """samples of the whole run, at least"""

    @classmethod
    def draw(cls, seed: int) -> Case:
        draw = np.random.default_rng(seed)
        sources = int(draw.integers(1, 5))
        begins = sorted(draw.integers(1, 150, int(draw.integers(0, 4))).tolist()) if sources > 1 else []
        weights = draw.integers(0, 9, (1 + len(begins), sources)).astype(float)
        weights[:, int(draw.integers(sources))] += 1
        first, step, border = (int(draw.integers(low, high)) for low, high in ((1, 4), (0, 4), (20, 120)))
        return cls(
            samples=draw.integers(12, 64, sources).tolist(),
            weights=weights[0].tolist(),
            phases=list(zip(begins, weights[1:].tolist(), strict=True)),
            seed=int(draw.integers(1000)),
            sizes=lambda samples: 8 * (first + step * (samples >= border)),
            total=160,
        )


class Simulated:
    """A recipe whose rows hold their own ids, and whose sources' sizes are in their paths."""

    sequence_length = target_length = 3
    vocabulary = 100
    settings: dict[str, Any] | None = None

    def samples(self, dataset: Any, split: str) -> Any:
        def rows(seed: int, ids: np.ndarray) -> Rows:
            return Rows.of(ids.copy(), ids + seed)

        return SimpleNamespace(count=int(dataset.directory.name), num_skipped=0, rows=rows)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are computed by the block; batches shall cross their borders."""
    monkeypatch.setattr("data_pipeline.order.sample_order._BLOCK", 128)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[[Case], SampleStream]:
    """Makes the stream of a case anew, as a process that starts does."""

    def dataset(path: Path) -> Any:
        return SimpleNamespace(directory=path, identity=str(path), tokenizer_identity="", vocabulary_size=100)

    monkeypatch.setattr("data_pipeline.loader.Dataset", dataset)
    return lambda case: SampleStream(
        [(Path(str(n)), weight) for n, weight in zip(case.samples, case.weights, strict=True)],
        Simulated(),
        case.seed,
        phases=case.phases,
    )


def interrupted(
    case: Case, make: Callable[[Case], SampleStream], draw: np.random.Generator, resized: bool
) -> Iterator[list[Batch]]:
    """The batches of all ranks, step by step, of a run that is killed again and again, and goes on on other ranks with
    other threads and, if `resized`, other sizes of batches."""
    cursor = make(case).cursor(0)
    while cursor.samples < case.total:
        stream, world = make(case), int(draw.choice([1, 2, 4]))
        size = int(draw.integers(1, 5)) * 8
        sizes = (lambda samples: size) if resized else case.sizes  # noqa: B023
        workers = int(draw.choice([0] * 9 + [1, 2, 3]))  # threads take their time to start and to end
        prefetch = int(draw.integers(1, 4))
        ranks = [
            load(stream, cursor, sizes, data_rank=rank, data_world=world, workers=workers, prefetch=prefetch)
            for rank in range(world)
        ]
        for batches in islice(zip(*ranks, strict=True), int(draw.integers(0, 5))):
            cursor = Cursor.from_dict(batches[0].cursor.to_dict())
            yield list(batches)


def micro_batches(batches: Sequence[Batch], draw: np.random.Generator) -> np.ndarray:
    """The rows of a global batch, as ranks read them in micro-batches of some size."""
    rows = len(batches[0].tokens)
    size = int(draw.choice([n for n in range(1, rows + 1) if rows % n == 0]))
    parts = [batch[np.arange(at, at + size)].tokens for batch in batches for at in range(0, rows, size)]
    return np.concatenate(parts)


def naive(case: Case, stream: SampleStream, count: int) -> list[list[int]]:
    """(source, epoch, number) of the first samples, counted one by one."""
    found, given, begins = [], [0] * len(case.samples), [0, *(begin for begin, _ in case.phases), sys.maxsize]
    orders: dict[tuple[int, int], list[int]] = {}
    for position in range(count):
        phase = max(n for n, begin in enumerate(begins) if begin <= position)
        (source,), _ = stream.mixture.blends[phase].assign(np.array([position - begins[phase]]))
        size = case.samples[source]
        epoch, place = divmod(given[source], size)
        if (source, epoch) not in orders:
            keys = round_keys(case.seed, int(source), epoch)
            orders[source, epoch] = permute(np.arange(size), size, keys).tolist()
        found.append([int(source), epoch, orders[source, epoch][place]])
        given[source] += 1
    return found


@CASES
@pytest.mark.usefixtures("small_blocks")
def test_a_run_killed_anywhere_sees_what_the_uninterrupted_one_sees(
    cases: int, simulated: Callable[[Case], SampleStream]
) -> None:
    """Batch by batch, row by row, on ranks and in micro-batches of any number."""
    for seed in range(cases):
        case, draw = Case.draw(seed), np.random.default_rng([seed, 1])
        whole = load(simulated(case), simulated(case).cursor(0), case.sizes, workers=0)
        for batches in interrupted(case, simulated, draw, resized=False):
            expected = next(whole)
            assert {batch.data_hash for batch in batches} == {expected.data_hash}, seed
            assert np.array_equal(micro_batches(batches, draw), expected.sample_ids), seed
            assert batches[0].cursor == expected.cursor, seed


@CASES
@pytest.mark.usefixtures("small_blocks")
def test_with_other_batch_sizes_the_samples_and_their_order_stay(
    cases: int, simulated: Callable[[Case], SampleStream]
) -> None:
    for seed in range(cases):
        case, draw = Case.draw(seed), np.random.default_rng([seed, 2])
        runs = [micro_batches(batches, draw) for batches in interrupted(case, simulated, draw, resized=True)]
        seen = np.concatenate(runs)
        assert np.array_equal(seen, simulated(case).sample_ids(0, len(seen))), seed


@pytest.mark.usefixtures("small_blocks")
def test_the_order_is_the_one_counted_sample_by_sample(simulated: Callable[[Case], SampleStream]) -> None:
    """Nothing is lost or repeated where weights change and where epochs end."""
    for seed in range(40):
        case = Case.draw(seed)
        stream = simulated(case)
        expected = naive(case, stream, 300)
        assert stream.sample_ids(0, 300).tolist() == expected, seed
        for samples in (0, 1, 149, 300):
            counts = [sum(source == n for source, _, _ in expected[:samples]) for n in range(len(case.samples))]
            assert stream.counts(samples).tolist() == counts, seed


def test_on_real_datasets_too(dataset: Dataset, second: Dataset) -> None:
    def make(case: Case) -> SampleStream:
        sources = [(dataset.directory, 1.0), (second.directory, 2.0)]
        return SampleStream(sources, 32, case.seed, phases=[(case.seed % 100 + 1, [1.0, 0.0]), (130, [3.0, 2.0])])

    for seed in range(REAL_CASES):
        case, draw = Case.draw(seed), np.random.default_rng([seed, 3])
        whole = load(make(case), make(case).cursor(0), case.sizes, workers=0)
        for batches in interrupted(case, make, draw, resized=False):
            expected = next(whole)
            assert {batch.data_hash for batch in batches} == {expected.data_hash}, seed
            assert np.array_equal(micro_batches(batches, draw), expected.tokens), seed


def test_the_first_batch_far_into_an_epoch_is_as_much_work_as_the_first_of_all(
    simulated: Callable[[Case], SampleStream],
) -> None:
    """Calls of functions and bytes of memory, not time: positions are computed, never run through."""
    case = Case([10**8, 10**8], [3.0, 1.0], [(10**6, [1.0, 1.0])], 0, lambda samples: 64, 0)
    work(simulated(case), 0)  # what is imported and cached at the first use
    at_start, at_90_percent = (work(simulated(case), samples) for samples in (0, 10**6 + 2 * 89_250_000))
    ids = simulated(case).sample_ids(10**6 + 2 * 89_250_000, 64)
    assert (ids[:, 1] == 0).all(), "still in the first epoch"
    assert simulated(case).epochs(10**6 + 2 * 89_250_000)[0] == pytest.approx(0.9)
    for much, little in zip(at_90_percent, at_start, strict=True):
        assert much < 1.2 * little


def work(stream: SampleStream, samples: int) -> tuple[int, int]:
    """(calls of functions, highest bytes of memory) of the first batch after so many samples."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    cursor = stream.cursor(samples)
    tracemalloc.start()
    sys.setprofile(count)
    try:
        next(load(stream, cursor, lambda _: 64, workers=0))
    finally:
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return calls, peak
