"""Texts in one Unicode form, and the way back to the places of their characters."""

from __future__ import annotations

import itertools
import random
import unicodedata

import numpy as np
import pytest

from data_pipeline.text.normal_form import comparable, original_bounds


def test_equal_texts_are_equal_however_they_are_encoded() -> None:
    for text in ("Tiếng Việt", "한국어 문장", "ガギグ", "ABC 123", "fine"):
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            assert comparable(unicodedata.normalize(form, text)) == comparable(text)
    assert comparable("\uff21\uff22\uff11 \uff76\uff9e \ufb01ne") == "AB1 \u30ac fine"


def test_a_word_is_found_where_it_was_written() -> None:
    text = "x " + unicodedata.normalize("NFD", "Tiếng Việt") + " \ufb01n \uff76\uff9e한"
    form = comparable(text)
    for word in ("Tiếng", "Việt", "fin", "ガ", "한"):
        begin = form.index(word)
        begins, ends = original_bounds(text, np.array([begin]), np.array([begin + len(word)]))
        assert comparable(text[begins[0] : ends[0]]) == word


@pytest.mark.parametrize("seed", range(3))
def test_each_character_comes_from_where_its_part_is(seed: int) -> None:
    """Whatever is written: marks without a letter, in any order, letters of Hangul, signs that become several."""
    draw = random.Random(seed)
    alphabet = "ae \u0301\u0323\u1100\u1161\u11a8\uac00\u09c7\u09be\ufb01\ufdfa\u00b4\uff76\uff9e\u3099中\u0344\ud800"
    for _ in range(100):
        text = "".join(draw.choices(alphabet, k=12))
        form = comparable(text)
        places = np.arange(len(form))
        begins, ends = original_bounds(text, places, places + 1)
        assert begins[0] == 0
        assert ends[-1] == len(text)
        parts = list(dict.fromkeys(zip(begins.tolist(), ends.tolist(), strict=True)))
        assert "".join(comparable(text[begin:end]) for begin, end in parts) == form
        assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(parts))
