"""Samples of classification and regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.input_format import truncated
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.recipes.text_labels import Classification, Regression, TextLabelRecipe
from data_pipeline.tokenizers.base import Tokenizer
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.labelled.conftest import Write

LENGTH = 32
SHAPES = {
    "encoder": ("bert", False),
    "roberta": ("roberta", False),
    "xlnet": ("xlnet", False),
    "decoder": ("gpt", True),
    "prefix_decoder": ("t5", True),
    "encoder_decoder": ("t5", False),
    "bart": ("bart", False),
}


def _rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    texts = make_documents(seed, 2 * count)
    return [
        {"text": a, "pair": b, "label": ("no", "yes", "maybe")[n % 3], "score": n / 4}
        for n, (a, b) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]


def _recipe(tokenizer: Tokenizer, shape: str = "encoder", length: int = LENGTH, **settings: Any) -> TextLabelRecipe:
    name, decoder_only = SHAPES[shape]
    settings = {"format": name, "labels": ["no", "maybe", "yes"], **settings}
    recipe = Classification(**settings).recipe(tokenizer, length, decoder_only=decoder_only)
    assert isinstance(recipe, TextLabelRecipe)
    return recipe


def _ids(count: int) -> np.ndarray:
    return np.stack([np.zeros(count), np.zeros(count), np.arange(count)], axis=1).astype(np.int64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram", "bytes"])
@pytest.mark.parametrize("pair", [None, "pair"])
def test_inputs_are_those_of_the_format(write: Write, shape: str, kind: str, pair: str | None) -> None:
    rows = _rows(12)
    dataset = write(rows, kind=kind)
    tokenizer = dataset.tokenizer()
    recipe = _recipe(tokenizer, shape, 2000, pair=pair, segments=shape in ("encoder", "xlnet"))
    made, ids = recipe.samples(dataset, "train").rows(0, _ids(12)), recipe.inputs.specials
    assert recipe.vocabulary == ids.vocabulary >= tokenizer.vocabulary_size
    for n, row in enumerate(rows):
        a, b = tokenizer.encode(row["text"]), tokenizer.encode(row["pair"])
        first = [ids.cls] if shape in ("encoder", "roberta", "bart") else []
        end = ids.sep if shape in ("encoder", "roberta", "xlnet") else ids.end
        between = [end, end] if shape in ("roberta", "bart") else [end]
        expected = [*first, *a, end] if pair is None else [*first, *a, *between, *b, end]
        expected += [ids.cls] if shape == "xlnet" else []
        size = len(expected)
        assert made.tokens[n, :size].tolist() == expected
        assert (made.tokens[n, size:] == recipe.inputs.pad).all()
        position = 0 if shape in ("encoder", "roberta") else size - 1
        assert made.loss_mask[n].nonzero()[0].tolist() == [position]
        assert made.labels[n, position] == ["no", "maybe", "yes"].index(row["label"])
        assert made.labels[n].sum() == made.labels[n, position]
        if shape == "decoder":
            assert made.attention_mask is None
        else:
            assert made.attention_mask is not None
            assert made.attention_mask[n].tolist() == [True] * size + [False] * (2000 - size)
        if shape == "encoder":
            assert made.segments is not None
            second = len(b) + 1 if pair else 0
            assert made.segments[n].tolist() == [0] * (size - second) + [1] * second + [0] * (2000 - size)
        if shape == "xlnet":
            assert made.segments is not None
            of_b = [1] * (len(b) + 1) if pair else []
            assert made.segments[n].tolist() == [0] * (len(a) + 1) + of_b + [2] + [0] * (2000 - size)
        if shape in ("encoder_decoder", "bart"):
            assert made.decoder_tokens is not None
            start = ids.pad if shape == "encoder_decoder" else ids.end
            assert made.decoder_tokens[n, : size + 1].tolist() == [start, *expected]


def test_lengths_of_cut_pairs_are_those_of_the_tokenizers_library() -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    for free in range(2, 14):
        library.enable_truncation(free, strategy="longest_first")
        for first in range(1, 16):
            for second in range(1, 16):
                ids = library.encode(" ".join("a" * first), " ".join("b" * second)).ids
                assert truncated(first, second, free) == [ids.count(0), ids.count(1)], (first, second, free)


@pytest.mark.parametrize("shape", SHAPES)
def test_long_texts_are_cut_at_their_ends(write: Write, shape: str) -> None:
    rows = _rows(20)
    dataset = write(rows)
    recipe = _recipe(dataset.tokenizer(), shape, 16, pair="pair")
    made = recipe.samples(dataset, "train").rows(0, _ids(20))
    for n, row in enumerate(rows):
        a, b = recipe.encode([row["text"], row["pair"]])
        kept = truncated(len(a), len(b), recipe.inputs.max_text_tokens(2))
        joined = recipe.inputs.join([a[: kept[0]], b[: kept[1]]])
        assert len(joined.ids) <= 16
        assert made.tokens[n, : len(joined.ids)].tolist() == joined.ids.tolist()
        assert made.loss_mask[n].sum() == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_does_not_depend_on_its_batch(write: Write, shape: str) -> None:
    sources = [(write(_rows(23), name="a"), 1.0), (write(_rows(9, 1), name="b"), 2.0)]
    recipe = _recipe(sources[0][0].tokenizer(), shape, pair="pair")
    stream = SampleStream(sources, recipe, seed=3)
    batch = stream.batch(0, 60)
    for start in range(0, 60, 7):
        for name, _, values in stream.batch(start, 6).columns():
            assert (getattr(batch, name)[start : start + 6] == values[: 60 - start]).all(), name
    ranks = [stream.batch(0, 60, rank, 4) for rank in range(4)]
    for name, _, values in batch.columns():
        assert (np.concatenate([getattr(one, name) for one in ranks]) == values).all(), name


def test_each_epoch_has_each_row_once_in_another_order(write: Write) -> None:
    stream = SampleStream([(write(_rows(23)), 1.0)], _recipe(write(_rows(23)).tokenizer()), seed=3)
    epochs = stream.sample_ids(0, 3 * 23)[:, 2].reshape(3, 23)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(23))] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3


@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_validation_row_is_scored_once(write: Write, world: int) -> None:
    dataset = write(_rows(5), _rows(23, 1))
    recipe = _recipe(dataset.tokenizer(), "decoder")
    samples = recipe.samples(dataset, "validation")
    scored = []
    for rank in range(world):
        for batch in heldout(dataset, recipe, 8, data_rank=rank, data_world=world):
            mine = batch.sample_ids[rank * 8 // world : (rank + 1) * 8 // world, 2]
            assert ((batch.loss_mask.sum(axis=1) == 1) == (mine >= 0)).all()
            for row, number in enumerate(mine.tolist()):
                if number >= 0:
                    scored.append(number)
                    position = batch.loss_mask[row].argmax()
                    assert batch.labels[row, position] == samples.labels[number]
    assert sorted(scored) == list(range(23))


def test_the_test_split_is_scored_where_there_is_one(write: Write) -> None:
    dataset = write(_rows(5), test=_rows(3, 1))
    (batch,) = heldout(dataset, _recipe(dataset.tokenizer()), 4, split="test")
    assert batch.sample_ids[:, 2].tolist() == [0, 1, 2, -1]


def test_the_fingerprint_is_of_labels_and_format(write: Write) -> None:
    dataset = write(_rows(9))
    tokenizer = dataset.tokenizer()
    recipes = [
        _recipe(tokenizer),
        _recipe(tokenizer, labels=["yes", "maybe", "no"]),
        _recipe(tokenizer, "roberta"),
        _recipe(tokenizer, segments=True),
        _recipe(tokenizer, length=64),
    ]
    assert len({SampleStream([(dataset, 1.0)], recipe, 0).fingerprint for recipe in recipes}) == 5
    assert SampleStream([(dataset, 1.0)], _recipe(tokenizer, z_loss=1e-4), 0).fingerprint == (
        SampleStream([(dataset, 1.0)], recipes[0], 0).fingerprint
    )


def test_regression_has_targets(write: Write) -> None:
    rows = _rows(6)
    dataset = write(rows)
    objective = Regression(format="gpt", label="score")
    samples = objective.recipe(dataset.tokenizer(), LENGTH, decoder_only=True).samples(dataset, "train")
    made = samples.rows(0, _ids(6))
    assert made.targets is not None
    assert made.targets.dtype == np.float32
    assert made.targets[made.loss_mask > 0].tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25]
    assert (made.targets[made.loss_mask == 0] == 0).all()
    assert (objective.loss, objective.task_head) == ("regression", TaskHead("sequence", 1))


def test_heads_have_an_output_for_each_class() -> None:
    objective = Classification(labels=[0, 1, 2])
    assert (objective.loss, objective.task_head) == ("classes", TaskHead("sequence", 3))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"label": "yes"}, r"the row has no field 'text'; its fields are label"),
        ({"text": "a"}, r"the row has no field 'label'; its fields are text"),
        (
            {"text": "a", "label": "perhaps"},
            r"the label 'perhaps' is none of objective.labels \('no', 'maybe', 'yes'\)",
        ),
        ({"text": "a", "label": 1}, r"the label 1 is none of objective.labels"),
        ({"text": "a", "label": None}, r"the label None is none of objective.labels"),
        ({"text": "", "label": "yes"}, r"the field 'text' is empty"),
        ({"text": " \n", "label": "yes"}, r"the field 'text' is empty"),
        ({"text": 7, "label": "yes"}, r"the field 'text' is not text but 7"),
        ('{"text": "\\ud83d", "label": "yes"}', r"the field 'text' holds half of a surrogate pair"),
    ],
)
def test_a_bad_row_is_named_before_the_first_step(write: Write, row: Any, problem: str) -> None:
    dataset = write([*_rows(3), row])
    with pytest.raises(DataError, match=rf"train.jsonl, line 4: {problem}"):
        SampleStream([(dataset, 1.0)], _recipe(dataset.tokenizer()), seed=0)


def test_a_number_is_told_from_a_text(write: Write) -> None:
    dataset = write([{"text": "a", "label": 0}, {"text": "a", "label": 1}])
    with pytest.raises(DataError, match=r"line 1: the label 0 is a number, and '0' of objective.labels a text"):
        SampleStream([(dataset, 1.0)], _recipe(dataset.tokenizer(), labels=["0", "1"]), seed=0)


def test_labels_may_be_true_and_false(write: Write) -> None:
    dataset = write([{"text": "a", "label": True}, {"text": "b", "label": False}])
    recipe = _recipe(dataset.tokenizer(), labels=[False, True])
    assert recipe.samples(dataset, "train").labels.tolist() == [1, 0]
    with pytest.raises(DataError, match=r"the label true is a truth value, and 'true' of objective.labels a text"):
        _recipe(dataset.tokenizer(), labels=["false", "true"]).samples(dataset, "train")
    numbers = write([{"text": "a", "label": 1}], name="numbers")
    with pytest.raises(DataError, match=r"the label 1 is none of objective.labels \(false, true\)"):
        _recipe(numbers.tokenizer(), labels=[False, True]).samples(numbers, "train")


def test_labels_are_of_one_type(write: Write) -> None:
    dataset = write([{"text": "a", "label": 0}, {"text": "a", "label": True}])
    with pytest.raises(DataError, match=r"train.jsonl, line 2: the label true is none of objective.labels \(0, 1\)"):
        _recipe(dataset.tokenizer(), labels=[0, 1]).samples(dataset, "train")


@pytest.mark.parametrize("label", ["NaN", "1e999", '"1"', "true", "null"])
def test_a_target_is_a_number(write: Write, label: str) -> None:
    dataset = write(['{"text": "a", "label": 1}', f'{{"text": "a", "label": {label}}}'])
    recipe = Regression(format="bert").recipe(dataset.tokenizer(), LENGTH)
    with pytest.raises(DataError, match=r"train.jsonl, line 2: the label .* is not a number"):
        recipe.samples(dataset, "train")


def test_a_class_without_a_row_is_named(write: Write) -> None:
    objective = Classification(labels=["no", "maybe", "yes"], format="bert")
    first, second = write(_rows(1)), write(_rows(2), name="more")
    recipe = objective.recipe(first.tokenizer(), LENGTH)
    samples = [recipe.samples(one, "train") for one in (first, second)]
    with pytest.raises(DataError, match=r"No row of .*set/train.jsonl or .*more/train.jsonl has the label 'maybe'"):
        objective.check_sources(["set", "more"], samples)
    objective.check_sources(["more"], [recipe.samples(write(_rows(3), name="all"), "train"), *samples])


@pytest.mark.parametrize("labels", [[], ["a"], ["a", "b", "a"], [True, 1], [1.5, 2.5]])
def test_labels_are_two_or_more_and_distinct(labels: list[Any]) -> None:
    with pytest.raises(ValidationError):
        Classification(labels=labels)


def test_rows_that_hold_no_text_are_refused(write: Write) -> None:
    tokenizer = write(_rows(3)).tokenizer()
    with pytest.raises(DataError, match="4 positions are too few for 2 texts"):
        _recipe(tokenizer, length=4, pair="pair")
    with pytest.raises(DataError, match=r"model.target_length=16 is less than model.sequence_length=32"):
        Classification(labels=[0, 1], format="t5").recipe(tokenizer, 32, 16)
