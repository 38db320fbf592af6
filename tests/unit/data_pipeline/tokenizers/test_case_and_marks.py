"""Marks spell words in most languages: they stay, unless a config says otherwise, and what is changed is said."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.build.tokenizer import _train
from data_pipeline.config import TokenizerConfig
from data_pipeline.errors import DataError
from data_pipeline.tokenizers import hf_json
from data_pipeline.tokenizers.changed_words import FEW, changed_by_stripping, changed_in
from data_pipeline.tokenizers.load import train_tokenizer
from tests.helpers.datasets import make_documents

WORDS = {
    "Hindi": ("में", "मैं"),
    "Thai": ("มา", "ม้า"),
    "Vietnamese": ("má", "mà"),
    "Japanese": ("ガラス", "カラス"),
    "German": ("schön", "schon"),
    "Hangul": ("한국어", "\u1112\u1161\u11ab국어"),
    "Russian": ("все", "всё"),
    "Turkish": ("on", "ön"),
    "Arabic": ("علَم", "علِم"),
}
"""Two words of each that differ in marks alone: there and there is I, come and horse, ..."""
ENGLISH = "the books of the house are on the table and all of them were read. " * 20
TEXTS = [*(f"{a} {b}, {a.upper()} 中文 x\u00ad\u200cy" for a, b in WORDS.values()), "CAFÉ naïve Straße İI ΟΔΟΣ \u0301"]


@pytest.mark.parametrize("name", WORDS)
def test_marks_of_a_language_are_letters(name: str) -> None:
    changed = changed_by_stripping([ENGLISH, *WORDS[name]] * 3)
    assert changed.share > 0.001
    assert changed_by_stripping(WORDS[name]).share > 10 * FEW
    a, b = WORDS[name]
    kept, stripped = (train_tokenizer(WORDS[name], "wordpiece", size, strip_accents=strip)
                      for size, strip in _sizes(name))  # fmt: skip
    assert kept.encode(a) != kept.encode(b)
    assert kept.encode(a.upper()) == kept.encode(a)
    assert kept.decode(kept.encode(f"{a} {b}")) == f"{a} {b}"
    assert stripped.encode(a) == stripped.encode(b)


def _sizes(name: str) -> list[tuple[int, bool]]:
    """The smallest vocabularies of its two words, without and with their marks stripped."""
    from tokenizers.normalizers import BertNormalizer

    both = "".join(WORDS[name])
    seen = [(strip, set(BertNormalizer(strip_accents=strip).normalize_str(both))) for strip in (False, True)]
    return [(5 + 2 * len(characters), strip) for strip, characters in seen]


def test_accents_of_english_are_few() -> None:
    assert changed_by_stripping([ENGLISH * 2, "a café"]).share <= FEW
    assert changed_by_stripping(["soft\u00adhyphens Case MARKS 中文 \uff11\uff12 ❤\ufe0f"]).share == 0


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_settings_mean_what_they_mean_in_transformers(
    lowercase: bool, strip_accents: bool | None, tmp_path: Path
) -> None:
    from transformers import BertTokenizer

    settings = {"lowercase": lowercase, "strip_accents": strip_accents}
    ours = train_tokenizer([*TEXTS * 4, *make_documents(0, 20)], "wordpiece", 450, **settings)  # type: ignore[arg-type]
    pieces = json.loads(ours.to_json())["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(pieces, key=pieces.__getitem__)) + "\n")
    theirs = BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=lowercase, strip_accents=strip_accents)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.unknown == theirs.unk_token_id


def test_a_build_keeps_marks_that_are_letters_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    hindi = [*make_documents(0, 30), " ".join(WORDS["Hindi"]) * 2]

    def stripped(texts: list[str], **settings: bool) -> bool | None:
        config = TokenizerConfig(type="wordpiece", vocabulary=400, **settings)  # type: ignore[arg-type]
        normalizer = json.loads(_train(config, texts).to_json())["normalizer"]
        assert normalizer["lowercase"] == settings.get("lowercase", True)
        found: bool | None = normalizer["strip_accents"]
        return found

    with caplog.at_level(logging.WARNING):
        assert stripped(hindi) is False
    assert "tokenizer.strip_accents is false, since with true " in caplog.text
    caplog.clear()
    plain = [text.replace("é", "e").replace("ü", "u") for text in make_documents(0, 30)]
    assert stripped(plain) is None, "as BERT was released, and as it always was"
    assert stripped(hindi, strip_accents=True) is True
    assert stripped(hindi, lowercase=False) is None
    assert not caplog.text


def test_words_that_a_tokenizer_changes_are_found() -> None:
    texts = [*TEXTS, *make_documents(0, 20)]
    bert = train_tokenizer(texts, "wordpiece", 450)
    changed = changed_in(bert, ["SCHÖN und Schon 中文 !? 12"])
    assert (changed.share, changed.examples) == (0.25, (("SCHÖN", "schon"),))
    assert changed_in(bert, ["ж unknown"]).share == 0
    assert changed_in(train_tokenizer(texts, "byte_bpe", 300), TEXTS).share == 0
    assert changed_in(train_tokenizer(texts, "wordpiece", 450, strip_accents=False), ["Schön Ön"]).share == 0


def test_of_a_phrase_without_spaces_the_change_is_shown() -> None:
    phrase = "そのとき" * 20 + "ガラス" + "です" * 20
    ((word, spelled),) = changed_by_stripping([phrase]).examples
    assert (len(word), word.index("ガ"), spelled[12:15]) == (24, 12, "カラス")


def test_keys_of_case_are_for_a_trained_wordpiece() -> None:
    for settings in ({"type": "bpe"}, {"type": "wordpiece", "path": "vocab.txt"}, {}):
        with pytest.raises(ValidationError, match="lowercase is for a trained wordpiece, and "):
            TokenizerConfig.model_validate(settings | {"lowercase": False})


def test_a_vocabulary_has_the_characters_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the 250 most frequent of 500 Han characters, 29% of the text was unknown."""
    monkeypatch.setattr(hf_json, "_ALPHABET", 250)
    draw = random.Random(0)
    texts = ["".join(chr(0x4E00 + int(500 * draw.random() ** 2)) for _ in range(500)) for _ in range(40)]

    def unknown(vocabulary: int) -> float:
        tokenizer = train_tokenizer(texts, "wordpiece", vocabulary)
        assert tokenizer.vocabulary_size == vocabulary
        return float(np.mean(np.concatenate([tokenizer.encode(text) for text in texts]) == tokenizer.unknown))

    def possible(vocabulary: int) -> int:
        with pytest.raises(DataError, match=r"possible is (\d+)\.") as caught:
            train_tokenizer(texts, "wordpiece", vocabulary)
        return int(str(caught.value).rstrip(".").rpartition(" ")[2])

    smallest, largest = possible(300), possible(50_000)
    assert unknown(largest) <= 0.0005 < unknown(largest - 3) < unknown(smallest) <= 0.01
