"""Rows that continue each other: each lane is read in order, again and again, on any ranks and after any stop."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.batch import Cursor
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream, load
from tests.helpers.datasets import build_dataset, make_documents

LENGTH, LANES = 32, 6


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return build_dataset(make_documents(3, 60), tmp_path_factory.mktemp("text"))


@pytest.fixture
def stream(text: Dataset) -> SampleStream:
    return SampleStream([(text.directory, 1.0)], LENGTH, 7, lanes=LANES)


def test_each_row_begins_where_the_row_of_the_batch_before_ended(stream: SampleStream, text: Dataset) -> None:
    windows = stream.num_samples[0] // LANES
    assert windows > 3
    whole = text.window("train", 0, text.num_tokens("train"))
    for turn in range(2 * windows):
        batch = stream.batch(turn * LANES, LANES)
        assert batch.before is not None
        assert (batch.before == turn % windows * LENGTH).all()
        for lane in range(LANES):
            start = (lane * windows + turn % windows) * LENGTH
            assert np.array_equal(batch.tokens[lane], whole[start : start + LENGTH])
            assert np.array_equal(batch.labels[lane], whole[start + 1 : start + LENGTH + 1])


def test_lanes_are_the_same_on_other_ranks_after_a_stop(stream: SampleStream) -> None:
    expected = list(islice(load(stream, stream.cursor(0), lambda _: LANES, workers=0), 8))
    cursor, turn = stream.cursor(0), 0
    for world, steps in ((1, 3), (3, 2), (2, 3)):
        ranks = [load(stream, cursor, lambda _: LANES, data_rank=rank, data_world=world) for rank in range(world)]
        for _ in range(steps):
            batches = [next(rank) for rank in ranks]
            for name in ("tokens", "before"):
                found = np.concatenate([getattr(batch, name) for batch in batches])
                assert np.array_equal(found, getattr(expected[turn], name))
            cursor, turn = Cursor.from_dict(batches[0].cursor.to_dict()), turn + 1


def test_another_number_of_lanes_is_another_order(stream: SampleStream, text: Dataset) -> None:
    others = [SampleStream([(text.directory, 1.0)], LENGTH, 7, lanes=lanes) for lanes in (0, LANES, LANES - 1)]
    assert [other.fingerprint == stream.fingerprint for other in others] == [False, True, False]
    with pytest.raises(DataError, match="another order of samples"):
        load(others[2], stream.cursor(LANES), lambda _: LANES)


def test_what_lanes_cannot_hold_is_refused(text: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="are too few for 1000000 rows"):
        SampleStream([(text.directory, 1.0)], LENGTH, 7, lanes=1_000_000)
    other = build_dataset(make_documents(4, 30), tmp_path, tokenizer={"path": text.tokenizer_path})
    with pytest.raises(DataError, match="read from one dataset"):
        SampleStream([(text.directory, 1.0), (other.directory, 1.0)], LENGTH, 7, lanes=LANES)


@pytest.mark.parametrize(("lanes", "world"), [(1, 1), (3, 1), (3, 2), (LANES, 4)])
def test_held_out_lanes_have_each_window_once_and_in_order(text: Dataset, lanes: int, world: int) -> None:
    ranks = [
        list(heldout(text, LENGTH, 0, data_rank=rank, data_world=world, limit=7, split="train", lanes=lanes))
        for rank in range(world)
    ]
    whole, of_lane = text.window("train", 0, 7 * LENGTH + 1), -(-7 // lanes)
    found = []
    for turn, batches in enumerate(zip(*ranks, strict=True)):
        ids = batches[0].sample_ids[:, 2]
        assert [number for number in ids.tolist() if number >= 0] == [n for n in range(turn, 7, of_lane)]
        assert all((batch.before == turn * LENGTH).all() for batch in batches if batch.before is not None)
        tokens, mask = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("tokens", "loss_mask"))
        assert mask.sum() == (ids >= 0).sum() * LENGTH
        for number, row in zip(ids.tolist(), tokens, strict=True):
            if number >= 0:
                assert np.array_equal(row, whole[number * LENGTH : (number + 1) * LENGTH])
                found.append(number)
    assert sorted(found) == list(range(7))
