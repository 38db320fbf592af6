"""The rows that the gate compares two implementations on: long enough, padded where a class reads padding, and with
what a head asks about."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pretrain.interop.hf.gate import head_rows_for, rows_for
from tests.helpers.families import family_config
from tests.multirank.test_hf_heads import head_config

HF: Any = SimpleNamespace(pad_token_id=1, eos_token_id=2, vocab_size=200)


def test_a_row_passes_the_border_of_the_widest_window() -> None:
    settings = {"positions": "rotary", "sequence_length": 1024}
    bands = [{"name": "banded", "window": 16}, {"name": "banded", "window": 48}]
    config = family_config("llama", model={**settings, "attention": {"pattern": bands}})
    reaches = [pattern.reach for pattern in config.model.attention.kinds]
    assert sorted(reaches) != [max(reaches)] * 2, "or this test sees nothing"
    assert rows_for(config).tokens.shape[1] == 64 + max(reaches)


@pytest.mark.parametrize(("family", "padded"), [("bert", True), ("deberta", False)])
def test_rows_have_padding_where_the_class_reads_it_as_ours_does(family: str, padded: bool) -> None:
    rows = head_rows_for(head_config(family, "classification"), HF)
    assert rows.attention_mask is not None
    seen = rows.attention_mask.sum(1)
    assert (seen[1] < seen[0]) == padded
    assert seen[0] == rows.tokens.shape[1]
    assert (rows.tokens[~rows.attention_mask.astype(bool)] == HF.pad_token_id).all()


@pytest.mark.parametrize(("family", "given", "expected"), [("gpt", 7, 7), ("gpt", -1, 2), ("bert", 7, 2)])
def test_a_decoder_s_rows_end_as_its_run_s_do_and_others_with_the_end_of_text(
    family: str, given: int, expected: int
) -> None:
    rows = head_rows_for(head_config(family, "classification"), HF, given)
    last = rows.loss_mask.argmax(1) if family == "gpt" else rows.attention_mask.sum(1).astype(int) - 1  # type: ignore[union-attr]
    assert rows.tokens[np.arange(len(last)), last].tolist() == [expected] * len(last)
    assert (rows.tokens == expected).sum() == len(last), "nowhere else"


@pytest.mark.parametrize(("objective", "asked"), [("tagging", None), ("classification", 1)])
def test_a_tagger_answers_at_every_token_and_a_classifier_once(objective: str, asked: int | None) -> None:
    rows = head_rows_for(head_config("bert", objective), HF)
    assert rows.attention_mask is not None
    assert rows.loss_mask.sum(1).tolist() == [asked or seen for seen in rows.attention_mask.sum(1)]


def test_an_end_is_asked_for_a_start_within_the_text() -> None:
    rows = head_rows_for(head_config("xlnet", "conditional spans"), HF)
    assert rows.attention_mask is not None
    starts = (rows.labels != 0).argmax(1)
    assert ((rows.labels != 0).sum(1) == 1).all()
    assert (starts == rows.attention_mask.sum(1) // 2).all()
