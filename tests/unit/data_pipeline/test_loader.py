"""Same samples, in the same order, whatever the ranks, threads, batch sizes and interruptions."""

from __future__ import annotations

import dataclasses
import gc
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline.batch import Batch, Cursor
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream, load
from data_pipeline.order.order import permute, round_keys
from data_pipeline.recipes.causal import CausalRecipe
from tests.helpers.datasets import build_dataset, make_documents

LENGTH = 32


@pytest.fixture(scope="module")
def stream(dataset: Dataset, second: Dataset) -> SampleStream:
    return SampleStream([(dataset.directory, 3.0), (second.directory, 1.0)], LENGTH, seed=11)


def rows(batches: Iterator[Batch], samples: int) -> np.ndarray:
    """[samples, LENGTH] tokens of the batches' rows, one after the other."""
    taken, count = [], 0
    for batch in batches:
        taken.append(np.concatenate([batch.tokens, batch.labels[:, -1:]], axis=1))
        count += len(batch.tokens)
        if count >= samples:
            return np.concatenate(taken)
    raise AssertionError("the batches ended")


def ramp(samples: int) -> int:
    return 8 if samples < 200 else 24 if samples < 500 else 64


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_together_get_the_one_global_order(stream: SampleStream, world: int, workers: int) -> None:
    expected = rows(load(stream, stream.cursor(0), lambda _: 1, workers=0), 1200)
    ranks = [
        load(stream, stream.cursor(0), ramp, data_rank=rank, data_world=world, workers=workers) for rank in range(world)
    ]
    seen, samples = [], 0
    while samples < 1000:
        batches = [next(rank) for rank in ranks]
        assert len({batch.data_hash for batch in batches}) == 1
        assert all(len(batch.tokens) * world == ramp(samples) for batch in batches)
        samples += ramp(samples)
        assert all(batch.cursor == stream.cursor(samples) for batch in batches)
        seen += [np.concatenate([batch.tokens, batch.labels[:, -1:]], axis=1) for batch in batches]
    assert np.array_equal(np.concatenate(seen), expected[:samples])


def test_a_run_resumed_again_and_again_sees_what_an_unbroken_one_sees(stream: SampleStream) -> None:
    expected = [batch.data_hash for batch in islice(load(stream, stream.cursor(0), ramp, workers=0), 40)]
    draw = np.random.default_rng(0)
    cursor, hashes = stream.cursor(0), []
    while len(hashes) < 40:
        world = int(draw.choice([1, 2, 4, 8]))
        again = SampleStream([(d.directory, w) for d, w in zip(stream.datasets, (3, 1), strict=True)], LENGTH, seed=11)
        batches = load(
            again, cursor, ramp, data_rank=world - 1, data_world=world, workers=int(draw.integers(3)), prefetch=5
        )
        for batch in islice(batches, int(draw.integers(1, 7))):
            hashes.append(batch.data_hash)
            cursor = Cursor.from_dict(batch.cursor.to_dict())  # what was trained on; prefetched batches don't count
    assert hashes[:40] == expected


def test_every_window_of_a_source_comes_once_an_epoch_in_another_order_each_time(stream: SampleStream) -> None:
    ids = stream.sample_ids(0, 10_000)
    for source, windows in enumerate(stream.num_samples):
        mine = ids[ids[:, 0] == source]
        epochs = len(mine) // windows
        assert epochs >= 3
        orders = mine[: epochs * windows, 2].reshape(epochs, windows)
        assert np.array_equal(mine[:, 1], np.arange(len(mine)) // windows)
        assert all(np.array_equal(np.sort(order), np.arange(windows)) for order in orders)
        assert (orders[0] == orders[1]).mean() < 0.1
        assert (orders[1] == orders[2]).mean() < 0.1


def test_a_row_holds_the_window_that_its_id_names(stream: SampleStream) -> None:
    batch = stream.batch(777, 64, data_rank=1, data_world=2)
    assert len(batch.sample_ids) == 64
    assert len(batch.tokens) == 32
    for row, (source, _, window) in enumerate(batch.sample_ids[32:].tolist()):
        expected = stream.datasets[source].window("train", window * LENGTH, LENGTH + 1)
        assert np.array_equal(batch.tokens[row], expected[:-1])
        assert np.array_equal(batch.labels[row], expected[1:])
    assert batch.tokens.dtype == batch.labels.dtype == np.int64
    assert batch.loss_mask.dtype == np.float32


def test_ids_do_not_depend_on_how_many_are_asked_for_at_once(stream: SampleStream) -> None:
    block = 2**14
    whole = stream.sample_ids(0, 3 * block)  # more than are kept
    for start, count in [(0, 1), (block - 1, 1), (block - 6, 12), (block, block), (100, block), (2 * block - 3, 7)]:
        assert np.array_equal(stream.sample_ids(start, count), whole[start : start + count])


@pytest.mark.parametrize("sizes", [[1], [2], [3], [70], [1, 300], [300, 2, 255, 256]])
def test_sources_of_few_samples_are_shuffled_epoch_by_epoch_at_little_cost(
    sizes: list[int], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order that runs have always had: that of `permute` for each epoch alone."""
    asked: list[int] = []

    def counted(seed: int, source: int, epoch: int) -> np.ndarray:
        asked.append(epoch)
        return round_keys(seed, source, epoch)

    counts = iter(sizes)
    monkeypatch.setattr("data_pipeline.order.sample_order.round_keys", counted)
    monkeypatch.setattr(CausalRecipe, "samples", lambda *given: SimpleNamespace(count=next(counts)))
    stream = SampleStream([(dataset, 1) for _ in sizes], 16, seed=3)
    stream.sample_ids(0, 4)
    assert 0 < len(asked) <= 300, "keys of one block: one for each epoch in it"
    ids = np.concatenate([stream.sample_ids(start, 7) for start in range(0, 140, 7)])
    sources, indices = stream.mixture.assign(np.arange(140))
    for (source, epoch, number), its, index in zip(ids.tolist(), sources.tolist(), indices.tolist(), strict=True):
        size = sizes[its]
        assert (source, epoch) == (its, index // size)
        assert number == permute(np.array([index % size]), size, round_keys(3, source, epoch))[0]
    assert (stream.sample_ids(0, 140) == ids).all()


def test_what_is_done_to_one_batch_is_not_seen_in_the_next(dataset: Dataset) -> None:
    stream = SampleStream([(dataset.directory, 1.0)], LENGTH, seed=11)
    spoilt, same = stream.batch(0, 4), stream.batch(0, 4)
    spoilt.tokens[:], spoilt.sample_ids[:] = 0, 0
    with pytest.raises(ValueError, match="read-only"):
        spoilt.loss_mask[:] = 0
    again = stream.batch(0, 4)
    for name in ("tokens", "labels", "loss_mask", "sample_ids"):
        assert np.array_equal(getattr(again, name), getattr(same, name))


def test_the_data_hash_follows_the_samples_and_their_order(stream: SampleStream) -> None:
    batch = stream.batch(0, 8)
    assert len(batch.data_hash) == 16
    assert batch.data_hash == stream.batch(0, 8).data_hash
    other = dataclasses.replace(batch, sample_ids=batch.sample_ids[::-1])
    assert other.data_hash != batch.data_hash != stream.batch(8, 8).data_hash


def test_a_cursor_of_another_order_is_refused(dataset: Dataset, second: Dataset) -> None:
    def make(a: float = 1.0, length: int = LENGTH, seed: int = 0, other: Dataset = second) -> SampleStream:
        return SampleStream([(dataset.directory, a), (other.directory, 1.0)], length, seed)

    cursor = make().cursor(10)
    next(load(make(), cursor, lambda _: 8))
    for changed in (make(a=2.0), make(length=16), make(seed=1), make(other=dataset)):
        with pytest.raises(DataError, match="another order of samples"):
            load(changed, cursor, lambda _: 8)


def test_weights_may_change_ahead_of_a_cursor_and_not_behind_it(dataset: Dataset, second: Dataset) -> None:
    def make(*phases: tuple[int, list[float]]) -> SampleStream:
        return SampleStream([(dataset.directory, 1.0), (second.directory, 1.0)], LENGTH, 0, phases=phases)

    then, other = (16, [3.0, 1.0]), (16, [1.0, 0.0])
    for samples, allowed in ((0, True), (8, True), (16, True), (17, False), (40, False)):
        cursor = make(then).cursor(samples)
        load(make(then), cursor, lambda _: 8, workers=0)
        load(make(then, (40, [1.0, 1.0])), cursor, lambda _: 8, workers=0)
        for changed in (make(other), make()):
            if allowed:
                load(changed, cursor, lambda _: 8, workers=0)
            else:
                with pytest.raises(DataError, match="another order of samples"):
                    load(changed, cursor, lambda _: 8, workers=0)


def test_a_cursor_does_not_depend_on_where_the_data_lies(
    stream: SampleStream, dataset: Dataset, second: Dataset, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(dataset.directory, tmp_path / "moved"))
    assert SampleStream([(moved, 3.0), (second.directory, 1.0)], LENGTH, seed=11).cursor(5) == stream.cursor(5)


@pytest.mark.parametrize("values", [{}, {"samples": 1}, {"samples": -1, "fingerprint": "a"}])
def test_what_is_no_cursor_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(DataError, match="not a data cursor"):
        Cursor.from_dict(values)


def test_datasets_of_different_tokenizers_are_refused_by_name(dataset: Dataset, tmp_path: Path) -> None:
    other = build_dataset(make_documents(5, 60), tmp_path)
    with pytest.raises(DataError, match="different tokenizers") as caught:
        SampleStream([(dataset.directory, 1.0), (other.directory, 1.0)], LENGTH, seed=0)
    assert str(dataset.directory) in str(caught.value)
    assert str(other.directory) in str(caught.value)


def test_a_dataset_too_short_for_a_window_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"validation split of .* too few for one window of 100,000"):
        SampleStream([(dataset.directory, 1.0)], 100_000, seed=0, split="validation")


@pytest.mark.parametrize(("count", "world"), [(10, 4), (0, 1), (-4, 2), (2, 4)])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_ranks_cannot_share_are_refused(
    stream: SampleStream, count: int, world: int, workers: int
) -> None:
    with pytest.raises(ValueError, match=f"{count} sequences can't be shared evenly by {world}"):
        next(load(stream, stream.cursor(0), lambda _: count, data_world=world, workers=workers))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_in_a_thread_reaches_the_caller_in_its_turn(
    stream: SampleStream, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    real = SampleStream.batch

    def fails_at_24(self: SampleStream, start: int, *others: int) -> Batch:
        if start == 24:
            raise DataError("the disk is gone")
        return real(self, start, *others)

    monkeypatch.setattr(SampleStream, "batch", fails_at_24)
    batches = load(stream, stream.cursor(0), lambda _: 8, workers=workers, prefetch=6)
    assert [next(batches).cursor.samples for _ in range(3)] == [8, 16, 24]
    with pytest.raises(DataError, match="the disk is gone"):
        next(batches)


def data_threads() -> int:
    return sum(thread.name.startswith("data") for thread in threading.enumerate())


def test_threads_end_with_the_iterator(stream: SampleStream, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SampleStream.batch

    def slow(self: SampleStream, *arguments: int) -> Batch:
        time.sleep(0.05)
        return real(self, *arguments)

    monkeypatch.setattr(SampleStream, "batch", slow)
    for end in (lambda batches: batches.close(), lambda batches: None):
        batches = load(stream, stream.cursor(0), lambda _: 8, workers=2)
        next(batches)
        assert 1 <= data_threads() <= 2  # one of them is at work on the next batch
        end(batches)
        del batches
        gc.collect()
        assert data_threads() == 0


def test_only_so_many_batches_are_prepared_ahead(stream: SampleStream) -> None:
    asked: list[int] = []

    def size(samples: int) -> int:
        asked.append(samples)
        return 8

    batches = load(stream, stream.cursor(0), size, workers=1, prefetch=3)
    for _ in range(5):
        next(batches)
    assert max(asked) == (5 + 3 - 1 - 1) * 8


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("length", [7, 32, 100_000])
def test_heldout_predicts_each_token_but_the_first_once(dataset: Dataset, length: int, world: int) -> None:
    ranks = [list(heldout(dataset, length, 4, data_rank=rank, data_world=world)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = []
    for turn in zip(*ranks, strict=True):
        assert {batch.tokens.shape for batch in turn} == {(4 // world, length)}
        assert len({batch.data_hash for batch in turn}) == 1
        seen += [(batch.tokens[batch.loss_mask > 0], batch.labels[batch.loss_mask > 0]) for batch in turn]
    stream = dataset.window("validation", 0, dataset.num_tokens("validation"))
    assert np.array_equal(np.concatenate([inputs for inputs, _ in seen]), stream[:-1])
    assert np.array_equal(np.concatenate([labels for _, labels in seen]), stream[1:])


def test_heldout_stops_at_its_limit(dataset: Dataset) -> None:
    batches = list(heldout(dataset, 16, 4, limit=10))
    assert sum(float(batch.loss_mask.sum()) for batch in batches) == 160
    windows = np.concatenate([batch.sample_ids[:, 2] for batch in batches])
    assert windows.tolist() == [*range(10), -1, -1]
    assert batches[-1].cursor.samples == 10
    assert list(takewhile(lambda b: b.loss_mask.all(), batches)) == batches[:2]
