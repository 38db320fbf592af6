"""Samples of words with tags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.recipes.tagging import Tagging, TaggingRecipe, TaggingSamples
from data_pipeline.tokenizers.base import Tokenizer
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.conftest import KINDS
from tests.unit.data_pipeline.labelled.conftest import Write

LABELS = ["O", "B-X", "I-X"]


def _rows(count: int) -> list[dict[str, Any]]:
    texts = [text.split()[:20] for text in make_documents(0, count)]
    return [{"words": words, "tags": [LABELS[len(word) % 3] for word in words]} for words in texts]


def _recipe(tokenizer: Tokenizer, length: int, name: str = "bert", decoder_only: bool = False) -> TaggingRecipe:
    objective = Tagging(labels=LABELS, format=name)  # type: ignore[arg-type]
    recipe = objective.recipe(tokenizer, length, decoder_only=decoder_only)
    assert isinstance(recipe, TaggingRecipe)
    return recipe


def _samples(recipe: TaggingRecipe, *of: Any) -> TaggingSamples:
    samples = recipe.samples(*of)
    assert isinstance(samples, TaggingSamples)
    return samples


def _ids(count: int) -> np.ndarray:
    return np.stack([np.zeros(count), np.zeros(count), np.arange(count)], axis=1).astype(np.int64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "decoder_only"), [("bert", False), ("gpt", True), ("t5", False), ("t5", True)])
def test_the_first_token_of_each_word_has_its_tag(write: Write, kind: str, name: str, decoder_only: bool) -> None:
    rows = _rows(10)
    dataset = write(rows, kind=kind)
    tokenizer = dataset.tokenizer()
    recipe = _recipe(tokenizer, 600, name, decoder_only)
    samples = _samples(recipe, dataset, "train")
    made = samples.rows(0, _ids(10))
    for n, row in enumerate(rows):
        position, expected = int(recipe.inputs.begin is not None), []
        for number, word in enumerate(row["words"]):
            pieces = tokenizer.encode(f" {word}" if number else word)
            assert made.tokens[n, position : position + len(pieces)].tolist() == pieces
            expected.append(position)
            position += len(pieces)
        assert made.loss_mask[n].nonzero()[0].tolist() == expected == samples.word_positions(n).tolist()
        assert [LABELS[tag] for tag in made.labels[n, expected]] == row["tags"]
        assert [LABELS[tag] for tag in samples.tags(n)] == row["tags"]


def test_words_that_do_not_fit_have_no_position(write: Write) -> None:
    dataset = write([{"words": ["ab" * 5, "ba", "O", "k"], "tags": ["O", "B-X", "I-X", "O"]}])
    samples = _samples(_recipe(dataset.tokenizer(), 8), dataset, "train")
    sizes = [len(dataset.tokenizer().encode(word)) for word in ("ab" * 5, "ba", "O", "k")]
    positions = samples.word_positions(0).tolist()
    assert positions == [begin if begin <= 6 else -1 for begin in (1 + np.cumsum(sizes) - sizes).tolist()]
    assert positions[0] == 1
    assert positions[-1] == -1
    made = samples.rows(0, _ids(1))
    assert made.loss_mask[0].nonzero()[0].tolist() == [p for p in positions if p >= 0]


def test_a_word_without_a_token_has_no_position(write: Write) -> None:
    dataset = write([{"words": ["ab", "\u200d", "ba"], "tags": ["O", "B-X", "I-X"]}])
    assert dataset.tokenizer().encode("\u200d") == []
    samples = _samples(_recipe(dataset.tokenizer(), 32), dataset, "train")
    positions = samples.word_positions(0).tolist()
    assert positions[1] == -1
    assert samples.rows(0, _ids(1)).labels[0, positions[2]] == 2


def test_a_sample_does_not_depend_on_its_batch(write: Write) -> None:
    dataset = write(_rows(20))
    recipe = _recipe(dataset.tokenizer(), 64)
    stream = SampleStream([(dataset, 1.0)], recipe, seed=1)
    batch = stream.batch(0, 30)
    for name, _, values in batch.columns():
        ranks = [getattr(stream.batch(0, 30, rank, 5), name) for rank in range(5)]
        assert (np.concatenate(ranks) == values).all()
        assert (np.concatenate([getattr(stream.batch(n, 1), name) for n in range(30)]) == values).all()


@pytest.mark.parametrize("world", [1, 4])
def test_each_validation_row_is_scored_once(write: Write, world: int) -> None:
    dataset = write(_rows(20), _rows(7))
    recipe = _recipe(dataset.tokenizer(), 600)
    counted = sum(
        batch.loss_mask.sum()
        for rank in range(world)
        for batch in heldout(dataset, recipe, 4, data_rank=rank, data_world=world)
    )
    assert counted == sum(len(row["words"]) for row in _rows(7))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"words": ["a"]}, r"the row has no field 'tags'; its fields are words"),
        ({"words": ["a"], "tags": ["O", "O"]}, r"there are 2 tags for 1 words; give each word one"),
        ({"words": ["a"], "tags": ["B-Y"]}, r"the label 'B-Y' is none of objective.labels \('O', 'B-X', 'I-X'\)"),
        ({"words": [], "tags": []}, r"the field 'words' is not a list of one or more texts"),
        ({"words": "a", "tags": ["O"]}, r"the field 'words' is not a list of one or more texts"),
        ({"words": ["a", ""], "tags": ["O", "O"]}, r"the word 1 is empty"),
        ({"words": [1], "tags": ["O"]}, r"the word 0 is not text but 1"),
    ],
)
def test_a_bad_row_is_named(write: Write, row: Any, problem: str) -> None:
    dataset = write([*_rows(3), row])
    with pytest.raises(DataError, match=rf"train.jsonl, line 4: {problem}"):
        _recipe(dataset.tokenizer(), 64).samples(dataset, "train")


def test_a_tag_without_a_word_is_named(write: Write) -> None:
    dataset = write([{"words": ["a", "b"], "tags": ["O", "B-X"]}])
    recipe = _recipe(dataset.tokenizer(), 64)
    with pytest.raises(DataError, match=r"No row of .*train.jsonl has the label 'I-X'"):
        recipe.objective.check_sources(["set"], [recipe.samples(dataset, "train")])
    assert recipe.objective.task_head == TaskHead("token", 3)
