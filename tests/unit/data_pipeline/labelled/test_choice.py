"""Samples of choices, of pairs in both orders, and of texts with their next tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.batch import RIGHT_CHOICE, WRONG_CHOICE, Rows
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.choice import Choice, ChoiceRecipe, ChoiceSamples
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.recipes.text_labels import Classification, Regression
from data_pipeline.tokenizers.base import Tokenizer
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.labelled.conftest import Write

LENGTH, MOST = 64, 4


def _rows(count: int) -> list[dict[str, Any]]:
    """Rows of two, three and four choices in turn; the last choice is right."""
    texts = [text[:40] for text in make_documents(0, 6 * count)]
    return [
        {
            "text": texts[6 * n],
            "question": texts[6 * n + 1],
            "choices": texts[6 * n + 2 : 6 * n + 4 + n % 3],
            "label": 1 + n % 3,
        }
        for n in range(count)
    ]


def _ids(count: int) -> np.ndarray:
    return np.stack([np.zeros(count), np.zeros(count), np.arange(count)], axis=1).astype(np.int64)


def _recipe(tokenizer: Tokenizer, form: str = "bert", length: int = LENGTH, **settings: Any) -> ChoiceRecipe:
    objective = Choice(format=form, max_choices=MOST, segments=form == "bert", **settings)  # type: ignore[arg-type]
    recipe = objective.recipe(tokenizer, MOST * length, decoder_only=form == "gpt")
    assert isinstance(recipe, ChoiceRecipe)
    return recipe


@pytest.mark.parametrize("form", ["bert", "roberta", "gpt"])
@pytest.mark.parametrize("question", [None, "question"])
def test_each_choice_is_a_pair_of_its_own(write: Write, form: str, question: str | None) -> None:
    rows = _rows(9)
    dataset = write(rows)
    recipe, tokenizer = _recipe(dataset.tokenizer(), form, 200, question=question), dataset.tokenizer()
    made, ids = recipe.samples(dataset, "train").rows(0, _ids(9)), recipe.inputs.specials
    assert recipe.sequence_length == recipe.target_length == 800 == made.tokens.shape[1]
    assert made.attention_mask is None
    assert made.documents is not None
    assert made.positions is not None
    assert (made.segments is not None) == (form == "bert")
    for n, row in enumerate(rows):
        begin = 0
        for number, choice in enumerate(row["choices"]):
            a = tokenizer.encode(row["text"])
            b = tokenizer.encode(choice if question is None else f"{row[question]} {choice}")
            end = ids.end if form == "gpt" else ids.sep
            between = [end, end] if form == "roberta" else [end]
            expected = [*([] if form == "gpt" else [ids.cls]), *a, *between, *b, end]
            size, position = len(expected), len(expected) - 1 if form == "gpt" else 0
            part = np.s_[n, begin : begin + size]
            assert made.tokens[part].tolist() == expected
            assert made.positions[part].tolist() == list(range(size))
            assert made.documents[part].tolist() == [number] * size
            right, here = number == row["label"], np.arange(size) == position
            assert made.labels[part].tolist() == (here * (RIGHT_CHOICE if right else WRONG_CHOICE)).tolist()
            assert made.loss_mask[part].tolist() == (here * right).tolist()
            if made.segments is not None:
                assert made.segments[part].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
            begin += size
        assert (made.documents[n, begin:] == -1).all()
        assert not made.labels[n, begin:].any()


def test_pairs_in_both_orders_share_a_row(write: Write) -> None:
    rows = [{"text": row["text"], "pair": row["question"], "label": 0.5 * n} for n, row in enumerate(_rows(5))]
    dataset = write(rows)
    tokenizer = dataset.tokenizer()
    one = Regression(format="gpt", pair="pair").recipe(tokenizer, 100, decoder_only=True)
    both = Regression(format="gpt", pair="pair", both_orders=True, language_model_weight=0.5)
    made = both.recipe(tokenizer, 200, decoder_only=True).samples(dataset, "train").rows(0, _ids(5))
    first = one.samples(dataset, "train").rows(0, _ids(5))
    turned = Regression(format="gpt", text="pair", pair="text").recipe(tokenizer, 100, decoder_only=True)
    second = turned.samples(dataset, "train").rows(0, _ids(5))
    assert made.summed is not None
    assert made.next_tokens is not None
    assert made.targets is not None
    assert made.targets.sum(axis=1).tolist() == [0.5 * n for n in range(5)]
    for row in range(5):
        size = int(first.loss_mask[row].argmax()) + 1
        assert int(second.loss_mask[row].argmax()) + 1 == size
        one_order, other = first.tokens[row, :size].tolist(), second.tokens[row, :size].tolist()
        assert made.tokens[row, : 2 * size].tolist() == [*one_order, *other]
        assert made.summed[row].nonzero()[0].tolist() == [size - 1, 2 * size - 1]
        assert made.loss_mask[row].nonzero()[0].tolist() == [size - 1]
        expected = [*one_order[1:], -1, *other[1:], *[-1] * (201 - 2 * size)]
        assert made.next_tokens[row].tolist() == expected


def test_masked_rows_add_nothing_to_a_language_model_loss(write: Write) -> None:
    dataset = write([{"text": row["text"], "label": "a" if n % 2 else "b"} for n, row in enumerate(_rows(6))])
    settings: dict[str, Any] = {"format": "gpt", "labels": ["a", "b"], "language_model_weight": 0.5}
    recipe = Classification(**settings).recipe(dataset.tokenizer(), 80, decoder_only=True)
    rows = recipe.samples(dataset, "train").rows(0, _ids(6))
    assert rows.next_tokens is not None
    assert ((rows.next_tokens >= 0).sum(axis=1) == rows.loss_mask.argmax(axis=1)).all()
    masked = rows.with_masked_rows(np.arange(6) > 2).next_tokens
    assert masked is not None
    assert (masked[3:] == -1).all()
    assert np.array_equal(masked[:3], rows.next_tokens[:3])


def test_long_texts_are_cut_to_each_choice_s_positions(write: Write) -> None:
    dataset = write([{"text": "a " * 400, "choices": ["b " * 400, "b"], "label": 0}])
    samples = _recipe(dataset.tokenizer()).samples(dataset, "train")
    assert isinstance(samples, ChoiceSamples)
    short = {"text": "a", "choices": ["b", "b"]}
    long = [short | {"text": "a " * LENGTH}, short | {"choices": ["b", "b " * LENGTH]}]
    assert samples.are_cut([short, *long, short]).tolist() == [False, True, True, False]
    rows = samples.rows(0, _ids(1))
    assert rows.documents is not None
    assert (rows.documents[0] == 0).sum() == (rows.documents[0] == 1).sum() == LENGTH


def test_held_out_rows_are_each_there_once(write: Write) -> None:
    dataset = write(_rows(7))
    recipe = _recipe(dataset.tokenizer())
    batches = [
        batch
        for rank in range(2)
        for batch in heldout(dataset, recipe, 4, data_rank=rank, data_world=2, split="validation")
    ]
    assert sum(batch.loss_mask.sum() for batch in batches) == 7


def test_a_stream_has_them_on_any_ranks(write: Write) -> None:
    dataset = write(_rows(12))
    stream = SampleStream([(dataset, 1.0)], _recipe(dataset.tokenizer()), 5)
    together: Rows = stream.batch(0, 8, 0, 1)
    shares = [stream.batch(0, 8, rank, 2) for rank in range(2)]
    for name, _, values in together.columns():
        assert np.array_equal(values, np.concatenate([getattr(share, name) for share in shares])), name


_GOOD: dict[str, Any] = {"text": "a", "choices": ["b", "c"], "label": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, "the label 2 is not the number of one of its 2 choices, which count from 0"),
        ({"label": -1}, "the label -1 is not the number"),
        ({"label": True}, "the label True is not the number"),
        ({"label": "b"}, "the label 'b' is not the number"),
        ({"choices": ["b"]}, "the row has one choice; give it two or more, or leave out the row"),
        ({"choices": []}, "the row has no choices"),
        ({"choices": "bc"}, "the field 'choices' is not a list of texts"),
        ({"choices": ["b", " "]}, "the choice 1 is empty"),
        ({"choices": ["b", 3]}, "the choice 1 is not text but 3"),
        ({"choices": list("bcdef")}, "the row has 5 choices, more than objective.max_choices=4; raise that"),
        ({"text": ""}, "the field 'text' is empty"),
    ],
)
def test_bad_rows_are_refused_with_their_line(write: Write, change: dict[str, Any], message: str) -> None:
    dataset = write([_GOOD, _GOOD | change])
    with pytest.raises(DataError, match=rf"train.jsonl, line 2: {message}"):
        _recipe(dataset.tokenizer()).samples(dataset, "train")


def test_a_missing_question_is_refused(write: Write) -> None:
    dataset = write([_GOOD])
    with pytest.raises(DataError, match="line 1: the row has no field 'question'; its fields are text, choices, label"):
        _recipe(dataset.tokenizer(), question="question").samples(dataset, "train")


def test_settings_that_do_not_suit_a_model_are_refused() -> None:
    assert Choice(max_choices=3).task_head == TaskHead("choice", 1)
    assert Choice(max_choices=3, language_model_weight=0.5).task_head == TaskHead("choice", 1, language_model=True)
    model: dict[str, Any] = {"input_format": None, "segments": False, "packing": True}
    with pytest.raises(ValueError, match=r"language_model_weight=0.5 is for decoders"):
        Choice(max_choices=3, language_model_weight=0.5).for_model("encoder", **model)
    with pytest.raises(ValueError, match="both_orders is for decoders"):
        Regression(pair="pair", both_orders=True).for_model("encoder", **model)
    with pytest.raises(ValueError, match=r"both_orders reads pairs in both orders: set objective.pair"):
        Regression(both_orders=True).for_model("decoder", **model)
    with pytest.raises(ValidationError):
        Choice(max_choices=1)


def test_rows_whose_right_choice_is_there_twice_are_counted(write: Write) -> None:
    rows = _rows(3)
    assert _recipe(write(rows).tokenizer()).samples(write(rows), "train").notes == ()
    rows[0]["choices"] = ["is", "is"]
    rows[1]["choices"] = ["a", "a", "b"]  # only wrong ones
    (note,) = _recipe(write(rows).tokenizer()).samples(write(rows), "train").notes
    assert note.startswith("1 of 3 rows have the text of the right choice twice")
