"""Windows in which no document sees another: the same tokens as plain windows, and each token but a document's first is
a label once an epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.causal import Causal
from data_pipeline.recipes.document_windows import DocumentWindows
from tests.helpers.datasets import build_pairs

LENGTH = 64  # shorter than some documents of the dataset, longer than others


@pytest.fixture(scope="module")
def windows(dataset: Dataset) -> DocumentWindows:
    samples = Causal(document_mask=True).recipe(dataset.tokenizer(), LENGTH).samples(dataset, "train")
    assert isinstance(samples, DocumentWindows)
    return samples


def _ids(numbers: np.ndarray) -> np.ndarray:
    return np.stack([np.zeros_like(numbers), np.zeros_like(numbers), numbers], axis=1)


def test_rows_hold_the_stream_and_say_which_document_each_token_is_of(
    dataset: Dataset, windows: DocumentWindows
) -> None:
    rows = windows.rows(0, _ids(np.arange(windows.count)))
    assert rows.documents is not None
    stream = dataset.window("train", 0, dataset.num_tokens("train"))
    assert rows.tokens.ravel()[: len(stream)].tolist()[:-1] == stream.tolist()[: rows.tokens.size][:-1]
    end = dataset.manifest.tokenizer.end_of_text
    for tokens, documents, mask in zip(rows.tokens[:-1], rows.documents[:-1], rows.loss_mask[:-1], strict=True):
        ended = np.cumsum(tokens == end) - (tokens == end)  # an end is of the document that it ends
        assert documents.tolist() == ended.tolist()
        assert mask.tolist() == (tokens != end).astype(float).tolist(), "what follows an end is another document's"
    assert rows.documents.max() > 0, "some window has two documents"


def test_the_last_row_is_filled_with_padding_that_is_of_no_document(dataset: Dataset, windows: DocumentWindows) -> None:
    rows = windows.rows(0, _ids(np.array([windows.count - 1])))
    assert rows.documents is not None
    rest = dataset.num_tokens("train") - (windows.count - 1) * LENGTH
    assert 1 < rest <= LENGTH
    assert (rows.documents[0, :rest] >= 0).all()
    assert (rows.documents[0, rest:] == -1).all()
    assert (rows.loss_mask[0, rest - 1 :] == 0).all()


@pytest.mark.parametrize("world", [1, 2])
def test_heldout_counts_every_label_once(dataset: Dataset, world: int) -> None:
    recipe = Causal(document_mask=True).recipe(dataset.tokenizer(), LENGTH)
    batches = [
        batch for rank in range(world) for batch in heldout(dataset, recipe, 4, data_rank=rank, data_world=world)
    ]
    found = np.concatenate([batch.labels[batch.loss_mask > 0] for batch in batches])
    end = dataset.manifest.tokenizer.end_of_text
    expected = [[*tokens[1:].tolist(), end] for _, tokens in dataset.documents("validation") if len(tokens)]
    assert sorted(found.tolist()) == sorted(label for labels in expected for label in labels)


def test_spans_are_what_rows_read(dataset: Dataset, windows: DocumentWindows) -> None:
    ids = _ids(np.array([2, windows.count - 1]))
    rows = windows.rows(0, ids)
    for row, begin, size in windows.token_spans(0, ids).tolist():
        assert rows.tokens[row, : size - 1].tolist() == dataset.window("train", begin, size - 1).tolist()


def test_orders_differ_from_plain_windows_and_from_packed_rows(dataset: Dataset) -> None:
    assert Causal(document_mask=True).settings() == {"document_mask": True}
    recipes = [
        objective.recipe(dataset.tokenizer(), LENGTH)
        for objective in (Causal(document_mask=True), Causal(), Causal(packing="best_fit"))
    ]
    assert len({SampleStream([(dataset.directory, 1.0)], recipe, 0).fingerprint for recipe in recipes}) == 3


def test_both_ways_to_keep_documents_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="document_mask does nothing with packing=best_fit"):
        Causal(document_mask=True, packing="best_fit")


def test_a_dataset_of_pairs_is_refused(tmp_path: Path) -> None:
    pairs = build_pairs([(f"eins {i}", f"one {i}") for i in range(40)], tmp_path)
    with pytest.raises(DataError, match=r"use objective\.name=pairs"):
        Causal(document_mask=True).recipe(pairs.tokenizer(), LENGTH).samples(pairs, "train")
