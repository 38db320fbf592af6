"""Streams that leave samples out: the order written down and cut, on any ranks, and cursors that know of it."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import ChainedStreams, SampleStream, load

LENGTH, TOTAL = 32, 400
GAPS = [(0, 8), (40, 16), (40, 8), (96, 3)]


@pytest.fixture(scope="module")
def stream(dataset: Dataset, second: Dataset) -> SampleStream:
    sources = [(dataset.directory, 3.0), (second.directory, 1.0)]
    return SampleStream(sources, LENGTH, seed=11, phases=[(60, [1.0, 3.0])])


@pytest.fixture(scope="module")
def chained(dataset: Dataset, stream: SampleStream) -> ChainedStreams:
    return ChainedStreams(SampleStream([(dataset.directory, 1.0), (stream.datasets[1], 1.0)], 16, seed=11), 48, stream)


def cut(ids: np.ndarray, gaps: list[tuple[int, int]]) -> np.ndarray:
    """Each gap taken out of what the ones before it left."""
    for begin, samples in gaps:
        ids = np.delete(ids, np.s_[begin : begin + samples], axis=0)
    return ids


def test_batches_are_those_of_the_order_without_the_gaps(stream: SampleStream) -> None:
    expected = cut(stream.sample_ids(0, TOTAL), GAPS)
    without = stream.skipping(GAPS)
    for world in (1, 2, 4):
        ranks = [
            load(without, without.cursor(0), lambda _: 8, data_rank=rank, data_world=world, workers=0)
            for rank in range(world)
        ]
        for number, batches in enumerate(islice(zip(*ranks, strict=True), 20)):
            ids = expected[number * 8 : number * 8 + 8]
            assert all(np.array_equal(batch.sample_ids, ids) for batch in batches)
            found = np.concatenate([batch.tokens for batch in batches])
            alone = [stream.samples[source].rows(11, ids[n : n + 1]).tokens for n, source in enumerate(ids[:, 0])]
            assert np.array_equal(found, np.concatenate(alone))


def test_counts_epochs_and_shares_are_of_what_is_read(stream: SampleStream) -> None:
    without = stream.skipping(GAPS)
    read = cut(stream.sample_ids(0, TOTAL), GAPS)
    for samples in (0, 1, 39, 40, 41, 60, 97, 200):
        counted = np.bincount(read[:samples, 0], minlength=2)
        assert np.array_equal(without.counts(samples), counted)
        assert np.array_equal(without.epochs(samples), counted / stream.num_samples)
    places = cut(np.arange(TOTAL)[:, None], GAPS)[:, 0]
    for samples in (0, 27, 28, 29, 40):
        assert without.shares(samples) == ([0.75, 0.25] if places[samples] < 60 else [0.25, 0.75])


def test_what_a_gap_leaves_out_is_what_was_to_be_read_there(stream: SampleStream, chained: ChainedStreams) -> None:
    for whole, gaps in ((stream, GAPS), (chained, [(0, 8), (40, 8), (48, 16), (50, 4)])):
        for number, (begin, samples) in enumerate(gaps):
            before = whole.skipping(gaps[:number])
            assert np.array_equal(whole.skipping(gaps).skipped_ids(number), before.sample_ids(begin, samples))


def test_a_cursor_knows_of_the_gaps_behind_it_alone(stream: SampleStream, chained: ChainedStreams) -> None:
    for whole in (stream, chained):
        without = whole.skipping([(40, 8)])
        assert without.cursor(40) == whole.cursor(40)
        assert without.cursor(41) != whole.cursor(41)
        assert without.cursor(41) == whole.skipping([(40, 8), (41, 8)]).cursor(41)
        assert whole.skipping([]).cursor(99) == whole.cursor(99)
        next(load(without, whole.cursor(40), lambda _: 8, workers=0))
        for mine, other in ((without, whole), (whole, without)):
            with pytest.raises(DataError, match="another order"):
                load(mine, other.cursor(48), lambda _: 8, workers=0)


def test_each_of_two_chained_streams_leaves_out_its_own(chained: ChainedStreams) -> None:
    without = chained.skipping([(8, 8), (56, 8)])
    first, then = chained.locate(0, 1)[0], chained.locate(48, 1)[0]
    first_ids = cut(first.sample_ids(0, 100), [(8, 8)])[:48]
    then_ids = cut(then.sample_ids(0, 100), [(8, 8)])
    for start in range(0, 96, 8):
        right = first_ids[start:] if start < 48 else then_ids[start - 48 :]
        batch = without.batch(start, 8)
        assert np.array_equal(batch.sample_ids, right[:8])
        assert batch.tokens.shape[1] == (16 if start < 48 else LENGTH)
        assert batch.cursor == without.cursor(start + 8)
