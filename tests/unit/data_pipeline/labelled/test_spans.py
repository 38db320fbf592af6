"""Samples of questions and the spans that answer them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import SPAN_END, SPAN_START
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.recipes.spans import Spans, SpansRecipe, SpansSamples
from data_pipeline.tokenizers.base import Tokenizer
from tests.helpers.breadth import only
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.conftest import KINDS
from tests.unit.data_pipeline.labelled.conftest import Write

FORMATS = [("bert", False), ("roberta", False), ("gpt", True), ("t5", True), ("t5", False), ("bart", False)]


def _rows(count: int, words: int = 60) -> list[dict[str, Any]]:
    """Contexts with odd characters; an answer is one to four words of one, or there is none."""
    draw, rows = random.Random(0), []
    for n, text in enumerate(make_documents(0, count)):
        context = " ".join([*text.split()[:words], "É", "中文", "x", *text.split()[:words]])
        starts = [0, *[index + 1 for index, character in enumerate(context) if character == " "]]
        begin = draw.randrange(len(starts) - 4)
        start, end = starts[begin], starts[begin + draw.randint(1, 4)] - 1
        answers = {"text": [context[start:end]], "start": [start]} if n % 5 else {"text": [], "start": []}
        rows.append({"question": f"which {text.split()[0]}", "context": context, "answers": answers})
    return rows


def _recipe(
    tokenizer: Tokenizer, length: int, name: str = "bert", decoder_only: bool = False, **settings: Any
) -> SpansRecipe:
    settings = {"max_question": 12, "stride": 8, **settings}
    recipe = Spans(format=name, **settings).recipe(tokenizer, length, decoder_only=decoder_only)  # type: ignore[arg-type]
    assert isinstance(recipe, SpansRecipe)
    return recipe


def _samples(recipe: SpansRecipe, *of: Any) -> SpansSamples:
    samples = recipe.samples(*of)
    assert isinstance(samples, SpansSamples)
    return samples


def _ids(count: int) -> np.ndarray:
    return np.stack([np.zeros(count), np.zeros(count), np.arange(count)], axis=1).astype(np.int64)


def test_rows_as_squad_has_them_give_the_same_samples(write: Write) -> None:
    rows = _rows(6)
    squad = [
        {**row, "id": "5", "answers": {"text": row["answers"]["text"], "answer_start": row["answers"]["start"]}}
        for row in rows
    ]
    made = []
    for name, of in (("ours", rows), ("squad", squad)):
        dataset = write(of, name=name)
        samples = _samples(_recipe(dataset.tokenizer(), 96), dataset, "train")
        made.append(samples.rows(0, _ids(samples.count)))
        assert samples.references(1) == rows[1]["answers"]["text"]
    for (name, _, ours), (_, _, theirs) in zip(made[0].columns(), made[1].columns(), strict=True):
        assert (ours == theirs).all(), name


@pytest.mark.parametrize(
    ("name", "decoder_only", "kind"),
    only(
        [("bert", False, kind) for kind in KINDS] + [(*form, "byte_bpe") for form in FORMATS],
        [(*form, kind) for form in FORMATS for kind in KINDS],
    ),
)
def test_labels_lead_back_to_the_exact_answer(write: Write, kind: str, name: str, decoder_only: bool) -> None:
    rows = _rows(12)
    dataset = write(rows, kind=kind)
    length, stride = (300, 80) if kind == "bytes" else (64, 24)  # so that a window has each answer
    recipe = _recipe(dataset.tokenizer(), length, name, decoder_only, stride=stride)
    samples = _samples(recipe, dataset, "train")
    made = samples.rows(0, _ids(samples.count))
    seen: dict[int, set[str]] = {}
    for number in range(samples.count):
        row = samples.row_number(number)
        (start,), (end,) = (np.flatnonzero(made.labels[number] & bit) for bit in (SPAN_START, SPAN_END))
        positions = samples.context_positions(number)
        assert np.flatnonzero(made.loss_mask[number]).tolist() == [start], "one loss a row, at the first position"
        if start:
            assert start in positions
            assert end in positions
        else:
            assert end == 0
        seen.setdefault(row, set()).add(samples.answer(number, int(start), int(end)))
    for n, row in enumerate(rows):
        assert samples.references(n) == row["answers"]["text"]
        assert seen[n] - {""} == set(row["answers"]["text"]), "what no window has, or what is not the answer"


@pytest.mark.parametrize("kind", KINDS)
def test_windows_cover_the_context_and_overlap_by_the_stride(write: Write, kind: str) -> None:
    rows = _rows(8)
    dataset = write(rows, kind=kind)
    recipe = _recipe(dataset.tokenizer(), 48)
    samples = _samples(recipe, dataset, "train")
    assert samples.count > len(rows)
    made = samples.rows(0, _ids(samples.count))
    for n, row in enumerate(rows):
        numbers = [number for number in range(samples.count) if samples.row_number(number) == n]
        ids = dataset.tokenizer().encode(row["context"])
        question = dataset.tokenizer().encode(row["question"])[:12]
        joined: list[int] = []
        for number in numbers:
            positions = samples.context_positions(number)
            assert made.tokens[number, 1 : 1 + len(question)].tolist() == question
            part = made.tokens[number, positions.start : positions.stop].tolist()
            assert not joined or joined[-8:] == part[:8]
            joined += part[8:] if joined else part
        assert joined == ids


def test_spans_of_other_positions_are_no_answer(write: Write) -> None:
    dataset = write(_rows(3))
    samples = _samples(_recipe(dataset.tokenizer(), 64), dataset, "train")
    positions = samples.context_positions(0)
    first, last = positions.start, positions.stop - 1
    assert samples.answer(0, first, first)
    assert samples.answer(0, first, last) in dataset.row("train", 0)["context"]
    assert [samples.answer(0, *pair) for pair in ((0, 0), (1, first), (first + 1, first), (first, last + 1))] == [
        ""
    ] * 4


def test_a_sample_does_not_depend_on_its_batch(write: Write) -> None:
    dataset = write(_rows(8))
    recipe = _recipe(dataset.tokenizer(), 48)
    stream = SampleStream([(dataset, 1.0)], recipe, seed=1)
    batch = stream.batch(0, 24)
    for name, _, values in batch.columns():
        assert (np.concatenate([getattr(stream.batch(n, 1), name) for n in range(24)]) == values).all()
        assert (np.concatenate([getattr(stream.batch(0, 24, n, 4), name) for n in range(4)]) == values).all()
    count = stream.num_samples[0]
    assert sorted(stream.sample_ids(0, count)[:, 2].tolist()) == list(range(count))


@pytest.mark.parametrize("world", [1, 4])
def test_each_validation_window_is_scored_once(write: Write, world: int) -> None:
    dataset = write(_rows(3), _rows(7))
    recipe = _recipe(dataset.tokenizer(), 48)
    samples = _samples(recipe, dataset, "validation")
    made = samples.rows(0, _ids(samples.count))
    batches = [b for rank in range(world) for b in heldout(dataset, recipe, 4, data_rank=rank, data_world=world)]
    assert sum(batch.loss_mask.sum() for batch in batches) == made.loss_mask.sum()
    scored = [batch.tokens[row].tobytes() for batch in batches for row in np.flatnonzero(batch.loss_mask.any(axis=1))]
    assert sorted(scored) == sorted(row.tobytes() for row in made.tokens)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"answers": {"text": ["b"], "start": [0]}}, r"the answer 'b' is not in its context at character 0"),
        ({"answers": {"text": ["c"], "start": [-1]}}, r"the answer 'c' is not in its context at character -1"),
        ({"answers": {"text": ["b"], "start": ["2"]}}, r"the answer 'b' is not in its context at character '2'"),
        ({"answers": {"text": ["b"], "start": []}}, r"the field 'answers' is not .* with as many texts as starts"),
        ({"answers": ["b"]}, r"the field 'answers' is not "),
        ({"answers": {"text": [""], "start": [0]}}, r"an answer is empty"),
        ({"question": ""}, r"the field 'question' is empty"),
        ({"context": 1}, r"the field 'context' is not text but 1"),
    ],
)
def test_a_bad_row_is_named(write: Write, change: dict[str, Any], problem: str) -> None:
    good = {"question": "q", "context": "a b c", "answers": {"text": ["b"], "start": [2]}}
    dataset = write([good, good | change])
    with pytest.raises(DataError, match=rf"train.jsonl, line 2: {problem}"):
        _recipe(dataset.tokenizer(), 64).samples(dataset, "train")


def test_rows_too_short_for_windows_are_refused(write: Write) -> None:
    tokenizer = write(_rows(1)).tokenizer()
    with pytest.raises(DataError, match=r"23 positions have no space for windows that overlap by objective.stride=8"):
        _recipe(tokenizer, 23)
    assert _recipe(tokenizer, 24).objective.task_head == TaskHead("token", 2)
