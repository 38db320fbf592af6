"""Text read from its end: what any packing makes of it is what it makes of a dataset of reversed documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.backward import BackwardText
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.heldout import heldout, num_heldout
from data_pipeline.recipes.backward import BackwardRecipe
from data_pipeline.recipes.causal import Causal

LENGTH = 48
PACKINGS: list[dict[str, Any]] = [{}, {"packing": "best_fit"}, {"document_mask": True}]


class Reversed:
    """A split written again, document by document from the last to the first, each in reverse order."""

    def __init__(self, dataset: Dataset, split: Any) -> None:
        end = [dataset.manifest.tokenizer.end_of_text]
        documents = [[*ids[::-1].tolist(), *end] for _, ids in dataset.documents(split)][::-1]
        self.tokens = np.concatenate([np.array(one, np.int64) for one in documents])
        self.sizes = np.array([len(one) for one in documents])
        self.manifest, self.address, self.identity = dataset.manifest, dataset.address, dataset.identity

    def num_tokens(self, split: Any) -> int:
        return len(self.tokens)

    def starts(self, split: Any) -> np.ndarray:
        return np.cumsum(self.sizes) - self.sizes

    def read(self, split: Any, starts: np.ndarray, length: int) -> np.ndarray:
        return self.tokens[starts[:, None] + np.arange(length)]

    def window(self, split: Any, start: int, count: int) -> np.ndarray:
        return self.tokens[start : start + count].copy()


def recipes(dataset: Dataset, packing: dict[str, Any], length: int = LENGTH) -> tuple[Any, Any]:
    tokenizer = dataset.tokenizer()
    backward = Causal(direction="backward", **packing).recipe(tokenizer, length)
    assert isinstance(backward, BackwardRecipe)
    return backward, Causal(**packing).recipe(tokenizer, length)


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_rows_are_those_of_a_dataset_of_reversed_documents(dataset: Dataset, packing: dict[str, Any]) -> None:
    backward, forward = recipes(dataset, packing)
    ours, theirs = backward.samples(dataset, "train"), forward.samples(Reversed(dataset, "train"), "train")
    assert (ours.count, ours.num_skipped) == (theirs.count, theirs.num_skipped)
    ids = np.array([[0, 2, number] for number in range(ours.count)])
    found, expected = ours.rows(5, ids), theirs.rows(5, ids)
    columns = {name: values for name, _, values in expected.columns()}
    assert {name for name, _, _ in found.columns()} == columns.keys()
    for name, _, values in found.columns():
        assert np.array_equal(values, columns[name]), name


def test_a_split_of_one_window_is_read_to_its_last_end_of_text(dataset: Dataset) -> None:
    text, oracle = BackwardText(dataset), Reversed(dataset, "validation")
    tokens = text.num_tokens("validation")
    assert text.window("validation", 0, tokens).tolist() == oracle.tokens.tolist()
    assert text.window("validation", tokens - 1, 1).tolist() == oracle.tokens[-1:].tolist()
    assert text.starts("validation").tolist() == oracle.starts("validation").tolist()
    for start in (-1, 1):
        with pytest.raises(ValueError, match="tokens"):
            text.window("validation", start, tokens)


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_spans_are_the_tokens_that_rows_read(dataset: Dataset, packing: dict[str, Any]) -> None:
    backward, _ = recipes(dataset, packing)
    samples = backward.samples(dataset, "train")
    ids = np.array([[0, 0, number] for number in range(samples.count)])
    rows = samples.rows(5, ids)
    spans = samples.token_spans(5, ids)
    for number in (0, len(ids) // 2, len(ids) - 1):
        read = np.concatenate([dataset.window("train", at, n)[::-1] for row, at, n in spans if row == number])
        labelled = rows.labels[number][rows.loss_mask[number] > 0]
        assert len(read) > len(labelled) > 0
        assert not set(labelled.tolist()) - set(read.tolist())
        if not packing:
            assert read.tolist() == [*rows.tokens[number].tolist(), int(rows.labels[number, -1])]


@pytest.mark.parametrize("world", [1, 2])
def test_held_out_text_is_scored_to_its_first_token(dataset: Dataset, world: int) -> None:
    backward, _ = recipes(dataset, {})
    batches = [
        batch for rank in range(world) for batch in heldout(dataset, backward, 4, data_rank=rank, data_world=world)
    ]
    found = np.concatenate([batch.labels[batch.loss_mask > 0] for batch in batches])
    assert sorted(found.tolist()) == sorted(Reversed(dataset, "validation").tokens[1:].tolist())
    assert num_heldout(dataset, backward) == -(-(dataset.num_tokens("validation") - 1) // LENGTH)


def test_the_direction_is_part_of_the_order_of_samples_and_forward_ones_stay_as_they_were(dataset: Dataset) -> None:
    backward, forward = recipes(dataset, {})
    assert backward.settings == {"objective": {"direction": "backward"}}
    assert forward.settings is None
