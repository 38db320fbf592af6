"""Rows that lose tokens because they are too long are counted, whatever the objective. A tokenizer of bytes makes one
token of each letter."""

from __future__ import annotations

from typing import Any

import pytest

from data_pipeline.recipes.instructions import Instructions
from data_pipeline.recipes.spans import Spans
from data_pipeline.recipes.tagging import Tagging
from data_pipeline.recipes.text_labels import Classification
from data_pipeline.recipes.text_to_text import TextToText
from tests.unit.data_pipeline.labelled.conftest import Write

LENGTH = 16
EXACT, LONGER = 13, 14
"""Letters of two texts that just fit between [CLS], [SEP] and [SEP], and one more."""


def _pair(letters: int) -> dict[str, Any]:
    return {"text": "a" * 5, "pair": "b" * (letters - 5), "label": letters % 2}


def _spans(question: int) -> dict[str, Any]:
    return {"question": "q" * question, "context": "c" * 40, "answers": {"text": ["c"], "start": [0]}}


CASES: dict[str, tuple[Any, bool, list[dict[str, Any]], int]] = {
    "pairs": (
        Classification(format="bert", pair="pair", labels=[0, 1]),
        False,
        [_pair(EXACT), _pair(LONGER), _pair(EXACT - 1), _pair(LONGER + 9)],
        2,
    ),
    "tags": (
        Tagging(format="bert", labels=["O", "X"]),
        False,
        [{"words": ["a" * 6, "b" * size], "tags": ["O", "X"]} for size in (7, 8, 1)],  # and a space between them
        1,
    ),
    "questions": (Spans(format="bert", max_question=4, stride=2), False, [_spans(4), _spans(5), _spans(6)], 2),
    "inputs or targets": (
        TextToText(format="t5", prefix="to: "),
        False,
        [{"input": "a" * a, "target": "b" * b} for a, b in ((11, 15), (12, 1), (1, 16), (12, 16), (1, 1))],
        3,
    ),
    "input and target in one row": (
        TextToText(format="t5"),
        True,
        [{"input": "a" * a, "target": "b" * b} for a, b in ((7, 7), (8, 7), (13, 1), (2, 13))],
        2,
    ),
    "conversations": (
        Instructions(packing="rows"),
        True,
        [{"prompt": "p" * a, "response": "r" * b} for a, b in ((8, 8), (8, 9), (20, 3), (1, 30))],  # the third: skipped
        2,
    ),
    "packed conversations": (
        Instructions(packing="best_fit"),
        True,
        [{"prompt": "p" * a, "response": "r" * b} for a, b in ((8, 8), (8, 9), (20, 3), (1, 1))],
        1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_that_lose_tokens_are_counted(write: Write, case: str) -> None:
    objective, decoder_only, rows, expected = CASES[case]
    dataset = write(rows, kind="bytes")
    recipe = objective.recipe(dataset.tokenizer(), LENGTH, LENGTH, decoder_only=decoder_only)
    assert recipe.samples(dataset, "train").num_cut == expected
    long = objective.recipe(dataset.tokenizer(), 200, 200, decoder_only=decoder_only)
    assert long.samples(dataset, "train").num_cut == (expected if case == "questions" else 0)
