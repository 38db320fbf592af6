"""Samples of text whose words have no spaces between them, and whose sentences end otherwise than in English."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_pipeline.recipes.characters import CharacterSpans
from data_pipeline.recipes.denoising import Denoising, sentence_permutation
from data_pipeline.recipes.gap_sentences import GapSentences
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.objective import BoundedObjective
from data_pipeline.recipes.permuted import Permuted
from data_pipeline.recipes.segments import Segments
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import train_tokenizer

_CHARACTERS = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生"
_DIGITS = "0123456789abcdef"


def _chinese(seed: int, sentences: int = 12) -> str:
    random = np.random.default_rng(seed)
    parts = ["".join(random.choice(list(_CHARACTERS), random.integers(5, 20))) for _ in range(sentences)]
    return "".join(part + str(random.choice(list("。！？"))) for part in parts)


@cache
def _tokenizer(kind: Any) -> Tokenizer:
    return train_tokenizer([_chinese(seed) for seed in range(60)] + [_DIGITS], kind, 330)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "bytes"])
@pytest.mark.parametrize("settings", [{}, {"ngrams": 3}, {"ngrams": 10, "geometric": 0.2}])
def test_as_much_of_chinese_is_masked_as_was_asked_for(kind: str, settings: dict[str, Any]) -> None:
    tokenizer, share = _tokenizer(kind), []
    for boundaries in ("ascii", "unicode"):
        recipe = Masked(whole_words=True, boundaries=boundaries, **settings).recipe(tokenizer, 130)
        masking = recipe.masking(None, "train")  # type: ignore[arg-type]
        rows = [np.array(tokenizer.encode(_chinese(seed, 40)))[:128] for seed in range(40)]
        masked = [masking.masked(row, np.random.default_rng(n))[1] for n, row in enumerate(rows)]
        share.append(np.mean(masked))
    assert share[0] > 0.8, "a row is one word"
    assert share[1] == pytest.approx(0.15, abs=0.02)


def test_a_word_of_more_than_may_be_masked_is_not_taken_whole() -> None:
    tokenizer = _tokenizer("bytes")
    row = np.array(tokenizer.encode("a " + _DIGITS * 20))
    masking = Masked(whole_words=True, boundaries="unicode").recipe(tokenizer, 400).masking(None, "train")  # type: ignore[arg-type]
    counts = {int(masking.masked(row, np.random.default_rng(seed))[1].sum()) for seed in range(20)}
    assert 0.1 * len(row) < min(counts) <= max(counts) <= round(0.15 * len(row))


def test_chinese_sentences_change_places_and_are_left_out() -> None:
    tokenizer = _tokenizer("bpe")
    text = np.array(tokenizer.encode(_chinese(1)))
    how = Denoising(boundaries="unicode")
    known = how.recipe(tokenizer, 512).known
    sentences = known.sentence_ends(text)
    assert np.flatnonzero(sentences)[-1] == len(text) - 1
    assert sentences.sum() == 12
    moved = sentence_permutation(text, np.random.default_rng(0), how, known)
    assert sorted(moved) == sorted(text)
    assert not np.array_equal(moved, text)
    first = GapSentences(boundaries="ascii").recipe(tokenizer, 512).sentences(text)
    found = GapSentences(boundaries="unicode").recipe(tokenizer, 512).sentences(text)
    assert (len(first), len(found)) == (2, 12), "halves, where there is no end"
    assert "".join(tokenizer.decode(one) for one in found) == _chinese(1)


def test_segments_of_chinese_are_sentences() -> None:
    tokenizer = _tokenizer("bpe")
    tokens = np.array([*tokenizer.encode(_chinese(1, 6)), tokenizer.end_of_text] * 2)
    half = len(tokens) // 2
    text: Any = SimpleNamespace(
        starts=lambda split: np.array([0, half]),
        num_tokens=lambda split: len(tokens),
        window=lambda split, start, count: tokens[start : start + count],
        address="here",
    )
    for boundaries in ("ascii", "unicode"):
        known: Any = SimpleNamespace(
            known=Masked(next_sentence=True, boundaries=boundaries).recipe(tokenizer, 130).known
        )
        segments = Segments(text, "train", known, sequence_length=200, text_tokens=190, short_fraction=0.0)
        cuts = [segments._piece(0, np.random.default_rng(seed)) for seed in range(20)]
        at_ends = [tokenizer.decode(piece[:cut])[-1] in "。！？" for _, (_, piece), cut in cuts]
        assert all(at_ends) == (boundaries == "unicode")


@pytest.mark.parametrize(
    ("objective", "is_needed"),
    [
        (Masked(), False),
        (Masked(whole_words=True), True),
        (Masked(sentence_order=True), True),
        (Denoising(), True),
        (Denoising(noise=["token_masking"]), False),
        (GapSentences(), True),
        (Permuted(), True),
        (CharacterSpans(), True),
    ],
)
def test_a_new_run_has_unicode_s_boundaries_where_it_needs_any(objective: BoundedObjective, is_needed: bool) -> None:
    new = objective.for_new_run()
    assert new.boundaries == ("unicode" if is_needed else None)
    assert (new.settings() != objective.settings()) == is_needed, "another order of samples"
    if is_needed:
        first = objective.model_copy(update={"boundaries": "ascii"})
        assert first.settings() == objective.settings(), "that of runs that an earlier version began"
        assert first.for_new_run() is first
    else:
        with pytest.raises(ValueError, match=r"objective\.boundaries=ascii does nothing"):
            type(objective).model_validate({**objective.model_dump(), "boundaries": "ascii"})
