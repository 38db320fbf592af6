"""Words and n-grams as arrays are those of plain Python, on text of all kinds."""

from __future__ import annotations

import random
import re
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex

from data_pipeline.text import words
from data_pipeline.text.words import WordRule, Words
from data_pipeline.writing.words import SEPARATOR, SPACES, caseless
from tests.helpers.datasets import ODD

TEXTS = [
    "Hello, World! don't (dont) -- end.", "", "x", "hello world", " … “quoted” É é\tfin\r\n", "a\u200db co-operate",
    "1,000.5 $5 C++ a_b", "\n\n one\n", *ODD,
]  # fmt: skip


_RUN = {"listed": r"\S+", "unicode": rf"[^{SPACES}{SEPARATOR}]+"}
_UNSEEN = {
    "listed": lambda character: unicodedata.category(character)[0] in "PC",
    "unicode": regex.compile(r"[\p{P}\p{C}]").match,
}


def plain_words(text: str, rule: WordRule) -> list[tuple[str, int, int]]:
    """(word, first character, one after its last), for scripts with spaces between words."""
    found = []
    for run in regex.finditer(_RUN[rule], text, regex.V1):
        kept = [(n, c) for n, c in enumerate(run.group(), run.start()) if not _UNSEEN[rule](c)]
        if kept:
            word = "".join(c for _, c in kept)
            found.append((word.lower() if rule == "listed" else caseless(word), kept[0][0], kept[-1][0] + 1))
    return found


def random_text(draw: random.Random, most: int) -> str:
    """Characters below the scripts without spaces, and some beyond the sixteenth bit."""
    codes = (draw.choice([draw.randint(32, 126), draw.randint(0, 0xDFF), draw.randint(0x1F300, 0x1F6FF), 32, 32, 32])
             for _ in range(draw.randint(0, most)))  # fmt: skip
    return "".join(map(chr, codes))


def check(texts: list[str], rule: WordRule) -> None:
    words = Words.of(texts, rule)
    assert len(words.firsts) == len(texts) + 1
    seen: dict[str, int] = {}
    for text, (first, end) in zip(texts, pairwise(words.firsts.tolist()), strict=True):
        expected = plain_words(text, rule)
        places = list(zip(words.begins[first:end].tolist(), words.ends[first:end].tolist(), strict=True))
        assert places == [(begin, stop) for _, begin, stop in expected], repr(text)
        for (word, _, _), value in zip(expected, words.hashes[first:end].tolist(), strict=True):
            assert seen.setdefault(word, value) == value, word
    assert len(set(seen.values())) == len(seen)


def test_long_texts_have_the_words_that_they_have_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    texts = [
        *TEXTS,
        *(random_text(draw, 400) for _ in range(60)),
        "x" * 300,
        "",
        "long " + "y" * 200 + "\nend",
        "z " * 99,
    ]
    whole = Words.of(texts)
    for at_once in (1, 7, 64, 250):
        monkeypatch.setattr(words, "AT_ONCE", at_once)
        parts = Words.of(texts)
        for name in ("hashes", "begins", "ends", "firsts"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), err_msg=f"{name}, {at_once}")


@pytest.mark.parametrize("rule", ["listed", "unicode"])
def test_words_are_those_of_plain_python(rule: WordRule) -> None:
    check([text for text in TEXTS if not re.search("[\u0e00-\u0eff\u3000-\u9fff\U00020000-\U0003ffff]", text)], rule)
    draw = random.Random(0)
    check([random_text(draw, 60) for _ in range(500)], rule)
    check(["only ascii, Here", "AND THERE"], rule)


@pytest.mark.slow
def test_real_words_have_hashes_of_their_own(real_text: Path) -> None:
    check((real_text / "wikitext2_test.txt").read_text(encoding="utf-8").split("\n\n")[:2000], "unicode")


def test_characters_of_scripts_without_spaces_are_words() -> None:
    words = Words.of(["ab 你好。c 吗"])
    assert list(zip(words.begins.tolist(), words.ends.tolist(), strict=True)) == [
        (0, 2),
        (3, 4),
        (4, 5),
        (6, 7),
        (8, 9),
    ]


def test_a_hash_does_not_depend_on_what_is_around_the_word() -> None:
    alone = [Words.of([word]).hashes[0] for word in ("over", "ÜBER", "über")]
    within = Words.of(["x" * 3000, "y, over ü Über."])
    assert within.hashes[2] == alone[0]
    assert within.hashes[4] == alone[1] == alone[2]


def test_hashes_stay_what_they_were_in_every_version() -> None:
    """Indexes and trained models are kept in files."""
    assert Words.of(["the quick über"]).hashes.tolist() == GOLDEN
    earlier = Words.of(["ฉั人々། ཀ་ཁ", "ΣΑΣ İ"], "listed")
    assert earlier.firsts.tolist() == [0, 5, 7]
    assert earlier.text_hashes().tolist() == LISTED


LISTED = [17209030391374251136, 9406734621871620105]
GOLDEN = [16605363854327600655, 4742843799009548834, 17231745005360227137]


@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_grams_are_all_runs_of_words_within_a_text(n: int) -> None:
    draw = random.Random(n)
    texts = [" ".join(draw.choice("abcd") for _ in range(draw.randint(0, 20))) for _ in range(60)]
    words = Words.of(texts)
    hashes, first = words.grams(n)
    runs = [tuple(text.split()[i : i + n]) for text in texts for i in range(len(text.split()) - n + 1)]
    starts = [
        base + i
        for text, base in zip(texts, words.firsts.tolist(), strict=False)
        for i in range(len(text.split()) - n + 1)
    ]
    assert first.tolist() == starts
    assert len(hashes) == len(runs)
    by_run: dict[tuple[str, ...], int] = {}
    for run, value in zip(runs, hashes.tolist(), strict=True):
        assert by_run.setdefault(run, value) == value
    assert len(set(by_run.values())) == len(by_run)


def test_no_words_make_no_grams() -> None:
    for texts in ([], [""], ["...", " "], ["one two"]):
        hashes, first = Words.of(texts).grams(3)
        assert hashes.dtype == np.uint64
        assert len(hashes) == len(first) == 0


def test_all_of_unicode_is_taken() -> None:
    text = " ".join(chr(code) for code in range(0, sys.maxunicode, 97) if not 0xD800 <= code < 0xE000)
    assert len(Words.of([text]).hashes) > 1000  # those that are assigned and no punctuation
