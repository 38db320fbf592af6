"""Best-fit packing: bins are those of the plain algorithm, and each token but a document's first is a label once an
epoch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream
from data_pipeline.order.order import permute, permute_each, round_keys
from data_pipeline.recipes.best_fit import PackedRows
from data_pipeline.recipes.bins import NumberedBins, best_fit_decreasing
from data_pipeline.recipes.causal import Causal
from tests.helpers.datasets import build_pairs

LENGTH = 64  # shorter than some documents of the dataset, longer than others


@pytest.fixture(scope="module")
def packed(dataset: Dataset) -> PackedRows:
    samples = Causal(packing="best_fit").recipe(dataset.tokenizer(), LENGTH).samples(dataset, "train")
    assert isinstance(samples, PackedRows)
    return samples


def epoch_of(samples: PackedRows, epoch: int = 0) -> np.ndarray:
    """[count, 3] ids of a whole epoch."""
    number = np.arange(samples.count)
    return np.stack([np.zeros_like(number), np.full_like(number, epoch), number], axis=1)


def plain_best_fit_decreasing(lengths: list[int], size: int) -> list[int]:
    """The room left in each bin, piece by piece, by looking at every bin."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [bin for bin, room in enumerate(rooms) if room >= length]
        if not fitting:
            rooms.append(size)
            fitting = [len(rooms) - 1]
        rooms[min(fitting, key=lambda bin: rooms[bin])] -= length
    return rooms


def lengths_of(kind: str, size: int, random: np.random.Generator) -> np.ndarray:
    draws = {
        "uniform": random.integers(1, size + 1, 600),
        "short": np.minimum(random.geometric(0.1, 900), size),
        "alike": random.choice([size // 3 + 1, size // 2, size // 2 + 1, size], 400),
        "text": np.minimum(random.lognormal(3, 1, 600).astype(np.int64) + 1, size),
    }
    return draws[kind]


@pytest.mark.parametrize("size", [7, 64, 200])
@pytest.mark.parametrize("kind", ["uniform", "short", "alike", "text"])
def test_bins_are_those_of_best_fit_decreasing_piece_by_piece(kind: str, size: int) -> None:
    lengths = lengths_of(kind, size, np.random.default_rng(size))
    bins = best_fit_decreasing(np.bincount(lengths, minlength=size + 1).tolist(), size)
    rooms = [
        size - sum(length * pieces for length, pieces in kind.content) for kind in bins for _ in range(kind.number)
    ]
    assert sorted(rooms) == sorted(plain_best_fit_decreasing(lengths.tolist(), size))
    numbered = NumberedBins(bins, size)
    _, length, number = numbered.pieces(np.arange(numbered.count))
    expected = sorted((int(size), n) for size, count in enumerate(np.bincount(lengths)) for n in range(count))
    assert sorted(zip(length.tolist(), number.tolist(), strict=True)) == expected, "each piece in one bin"


def test_documents_like_those_of_the_web_leave_almost_no_padding() -> None:
    """Ding et al. 2024 find the same for text and code: packing needs hardly more rows than windows."""
    tokens = np.random.default_rng(0).lognormal(6, 1.2, 100_000).astype(np.int64) + 2
    samples = PackedRows(_Counting(tokens), "train", 2048)  # type: ignore[arg-type]
    assert samples.padding < 1e-3
    assert samples.count * 2048 * (1 - samples.padding) == pytest.approx((tokens - 1).sum(), rel=1e-12)


class _Counting:
    """A dataset of documents of these lengths, whose tokens are their own places in the stream."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._tokens = tokens
        self.manifest = SimpleNamespace(tokenizer=SimpleNamespace(end_of_text=-1))
        self.address = "counting"

    def starts(self, split: str) -> Any:
        return np.cumsum(self._tokens) - self._tokens

    def num_tokens(self, split: str) -> int:
        return int(self._tokens.sum())

    def read(self, split: str, starts: np.ndarray, length: int) -> Any:
        return starts[:, None] + np.arange(length)


@pytest.mark.parametrize("epoch", [0, 3])
def test_of_each_document_every_token_but_the_first_is_a_label_once_an_epoch(epoch: int) -> None:
    sizes = np.random.default_rng(1).integers(1, 150, 500)
    samples = PackedRows(_Counting(sizes), "train", LENGTH)  # type: ignore[arg-type]
    rows = samples.rows(5, epoch_of(samples, epoch))
    labels = np.sort(rows.labels[rows.loss_mask > 0])
    ends = np.cumsum(sizes)
    assert np.array_equal(labels, np.setdiff1d(np.arange(ends[-1]), ends - sizes))
    assert samples.num_skipped == (sizes == 1).sum()
    counted = rows.loss_mask > 0
    assert np.array_equal(rows.tokens[counted] + 1, rows.labels[counted])
    assert (rows.tokens[~counted] == -1).all()
    assert rows.documents is not None
    assert np.array_equal(rows.documents >= 0, counted)
    document = np.searchsorted(ends, rows.tokens, side="right")
    for own, numbers in zip(document, rows.documents, strict=True):
        real = numbers[numbers >= 0]
        assert (numbers[len(real) :] == -1).all(), "padding is at the end"
        changes = np.flatnonzero(np.diff(own[: len(real)])) + 1
        assert np.array_equal(real, np.searchsorted(changes, np.arange(len(real)), side="right"))


def test_a_document_is_cut_only_where_it_is_longer_than_a_row() -> None:
    sizes = np.array([2, 65, 66, 130, 1, 40])
    samples = PackedRows(_Counting(sizes), "train", LENGTH)  # type: ignore[arg-type]
    rows = samples.rows(0, epoch_of(samples))
    found = set()
    for tokens, documents in zip(rows.tokens, rows.documents, strict=True):  # type: ignore[arg-type]
        found |= {(tokens[documents == d][0], (documents == d).sum()) for d in range(documents.max() + 1)}
    assert found == {(0, 1), (2, 64), (67, 64), (131, 1), (133, 64), (197, 64), (261, 1), (264, 39)}


def test_rows_hold_the_text_of_the_dataset(dataset: Dataset, packed: PackedRows) -> None:
    rows = packed.rows(2, epoch_of(packed))
    found = []
    for tokens, labels, numbers in zip(rows.tokens, rows.labels, rows.documents, strict=True):  # type: ignore[arg-type]
        for number in range(numbers.max() + 1):
            at = numbers == number
            found.append((*tokens[at].tolist(), int(labels[at][-1])))
    end, expected = dataset.manifest.tokenizer.end_of_text, []
    for _, tokens in dataset.documents("train"):
        whole = [*tokens.tolist(), end]
        expected += [tuple(whole[at : at + LENGTH + 1]) for at in range(0, len(whole) - 1, LENGTH)]
    assert sorted(found) == sorted(expected)


def test_a_row_has_other_neighbours_in_another_epoch_source_or_seed(packed: PackedRows) -> None:
    ids = epoch_of(packed)
    first = packed.rows(5, ids)
    for seed, change in ((5, [0, 1, 0]), (5, [1, 0, 0]), (6, [0, 0, 0])):
        other = packed.rows(seed, ids + change)
        assert np.array_equal(first.documents, other.documents), "lengths follow from the number alone"  # type: ignore[arg-type]
        assert (first.tokens == other.tokens).all(axis=1).mean() < 0.1


def test_a_sample_is_the_same_alone_in_a_batch_and_on_any_rank(dataset: Dataset, packed: PackedRows) -> None:
    recipe = Causal(packing="best_fit").recipe(dataset.tokenizer(), LENGTH)
    stream = SampleStream([(dataset.directory, 1.0)], recipe, seed=5)
    whole = stream.batch(packed.count - 12, 24)  # across two epochs
    assert set(whole.sample_ids[:, 1]) == {0, 1}
    for size, world in ((1, 1), (8, 4), (24, 3)):
        parts = [
            stream.batch(start, size, rank, world)
            for start in range(packed.count - 12, packed.count + 12, size)
            for rank in range(world)
        ]
        for name in ("tokens", "labels", "loss_mask", "documents"):
            assert np.array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


def test_the_first_rows_are_like_all_of_them(packed: PackedRows) -> None:
    """A held-out split may be scored in part."""
    documents = packed.rows(0, epoch_of(packed)).documents
    assert documents is not None
    alone = documents.max(axis=1) == 0
    part = alone[: packed.count // 3]
    assert abs(part.mean() - alone.mean()) < 4 * np.sqrt(alone.mean() * (1 - alone.mean()) / len(part))


@pytest.mark.parametrize("world", [1, 2])
def test_heldout_counts_every_label_once(dataset: Dataset, world: int) -> None:
    recipe = Causal(packing="best_fit").recipe(dataset.tokenizer(), LENGTH)
    batches = [
        batch for rank in range(world) for batch in heldout(dataset, recipe, 4, data_rank=rank, data_world=world)
    ]
    found = np.concatenate([batch.labels[batch.loss_mask > 0] for batch in batches])
    end = dataset.manifest.tokenizer.end_of_text
    expected = [[*tokens[1:].tolist(), end] for _, tokens in dataset.documents("validation") if len(tokens)]
    assert sorted(found.tolist()) == sorted(label for labels in expected for label in labels)


def test_each_has_its_own_permutation() -> None:
    sizes = np.array([1, 2, 70, 70, 5000, 1, 64])
    index = np.array([0, 1, 69, 3, 4999, 0, 63])
    keys = np.stack([round_keys(seed, 0, 0) for seed in range(7)], axis=1)
    expected = [permute(index[i : i + 1], int(sizes[i]), keys[:, i])[0] for i in range(7)]
    assert permute_each(index, sizes, keys).tolist() == expected


def test_windows_are_as_they_were(dataset: Dataset) -> None:
    assert Causal().settings() == Causal(packing="windows").settings() == {}
    assert Causal(packing="best_fit").settings() == {"packing": "best_fit"}
    best, windows = (
        SampleStream([(dataset.directory, 1.0)], Causal(packing=packing).recipe(dataset.tokenizer(), LENGTH), 0)  # type: ignore[arg-type]
        for packing in ("best_fit", "windows")
    )
    assert best.fingerprint != windows.fingerprint
    assert windows.fingerprint == SampleStream([(dataset.directory, 1.0)], LENGTH, 0).fingerprint


def test_documents_without_a_pair_are_refused() -> None:
    with pytest.raises(DataError, match="No document of the train split of counting has two tokens"):
        PackedRows(_Counting(np.ones(3, np.int64)), "train", LENGTH)  # type: ignore[arg-type]


def test_a_dataset_of_pairs_is_refused(tmp_path: Path) -> None:
    pairs = build_pairs([(f"eins {i}", f"one {i}") for i in range(40)], tmp_path)
    with pytest.raises(DataError, match=r"use objective\.name=pairs"):
        Causal(packing="best_fit").recipe(pairs.tokenizer(), LENGTH).samples(pairs, "train")
