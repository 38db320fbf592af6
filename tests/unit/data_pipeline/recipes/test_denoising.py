"""BART's noise, function by function, and its samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.corruption import CorruptionRecipe
from data_pipeline.recipes.denoising import NOISE, Denoising
from data_pipeline.recipes.registry import OBJECTIVES

TEXT = np.arange(5, 305)  # no special id of the tokenizer; all different


def recipe_of(dataset: Dataset, **objective: Any) -> CorruptionRecipe:
    recipe = OBJECTIVES["denoising"](**{"noise_density": 0.3, **objective}).recipe(dataset.tokenizer(), 64)
    assert isinstance(recipe, CorruptionRecipe)
    return recipe


def noised(dataset: Dataset, name: str, text: np.ndarray = TEXT, **objective: Any) -> list[np.ndarray]:
    recipe, random = recipe_of(dataset, **objective), np.random.default_rng(0)
    assert isinstance(recipe.objective, Denoising)
    return [NOISE[name](text, random, recipe.objective, recipe.known) for _ in range(300)]


@pytest.mark.parametrize("noise", [["text_infilling", "sentence_permutation"], list(NOISE)])
def test_the_target_is_the_whole_text_between_bart_s_specials(dataset: Dataset, noise: list[str]) -> None:
    recipe = recipe_of(dataset, noise=noise)
    cls, end, pad = recipe.known.specials.cls, recipe.known.specials.end, recipe.known.specials.pad
    batch = SampleStream([(dataset.directory, 1.0)], recipe, 0).batch(0, 64)
    assert batch.attention_mask is not None
    assert batch.decoder_tokens is not None
    for row, (_, _, number) in enumerate(batch.sample_ids.tolist()):
        text = dataset.window("train", number * 62, 62)
        assert np.array_equal(batch.labels[row], [cls, *text, end])
        assert np.array_equal(batch.decoder_tokens[row], [end, cls, *text])
        size = int(batch.attention_mask[row].sum())
        assert batch.attention_mask[row, :size].all()
        assert (batch.tokens[row, 0], batch.tokens[row, size - 1]) == (cls, end)
        assert (batch.tokens[row, size:] == pad).all()
    assert (batch.loss_mask == 1).all()


def test_masking_keeps_the_length_and_deletion_does_not(dataset: Dataset) -> None:
    mask = recipe_of(dataset).known.specials.mask
    for text in noised(dataset, "token_masking"):
        assert (text == mask).sum() == 90
        assert np.array_equal(text[text != mask], TEXT[text != mask])
    for text in noised(dataset, "token_deletion"):
        assert len(text) == 210
        assert (np.diff(text) > 0).all()


@pytest.mark.parametrize("mean", [1.0, 3.0, 8.0])
def test_infilling_puts_one_mask_for_each_span_of_poisson_s_lengths(dataset: Dataset, mean: float) -> None:
    mask = recipe_of(dataset).known.specials.mask
    spans, adjacent = [], 0
    for text in noised(dataset, "text_infilling", mean_span=mean):
        kept = text[text != mask]
        assert len(TEXT) - len(kept) == 90
        assert len(text) <= len(TEXT)
        assert (np.diff(kept) > 0).all()
        # What a mask stands for: the ids that lack between its neighbours.
        edges = np.concatenate([[TEXT[0] - 1], kept, [TEXT[-1] + 1]])
        lacking = np.diff(edges) - 1
        spans += lacking[lacking > 0].tolist()
        adjacent += int((text == mask).sum()) - int((lacking > 0).sum())
    zero = np.exp(-mean)
    assert np.mean(spans) == pytest.approx(mean / (1 - zero), rel=0.05)  # spans of no tokens are not among them
    if mean == 3.0:
        assert adjacent / len(spans) == pytest.approx(zero / (1 - zero), rel=0.2)


def test_infilling_of_nearly_everything_still_keeps_spans_apart(dataset: Dataset) -> None:
    for text in noised(dataset, "text_infilling", noise_density=0.9, mean_span=1.0):
        assert 0 < len(text) <= len(TEXT)
    for text in noised(dataset, "text_infilling", TEXT[:2], noise_density=0.1):
        assert np.array_equal(text, TEXT[:2])


def test_sentences_change_places_and_stay_whole(dataset: Dataset) -> None:
    tokenizer = dataset.tokenizer()
    text = np.array([*tokenizer.encode("a b c.\n"), *tokenizer.encode("d e"), tokenizer.end_of_text, *TEXT[100:103]])
    known = recipe_of(dataset).known
    text = text[: -3 if known.ends_sentence[text[-3:]].any() else None]
    cut = np.flatnonzero(known.ends_sentence[text] | (text == tokenizer.end_of_text)) + 1
    sentences = {tuple(part) for part in np.split(text, cut) if part.size}
    orders = {tuple(found) for found in noised(dataset, "sentence_permutation", text)}
    assert len(sentences) >= 2
    assert len(orders) == np.prod(np.arange(1, len(sentences) + 1))
    for order in orders:
        rest, found = list(order), set()
        while rest:
            first = next(part for part in sentences if tuple(rest[: len(part)]) == part)
            found.add(first)
            rest = rest[len(first) :]
        assert found == sentences


def test_a_sentence_may_end_right_before_the_last_token(dataset: Dataset) -> None:
    end = dataset.tokenizer().end_of_text
    text = np.array([*TEXT[100:104], end, TEXT[104]])
    orders = {tuple(found) for found in noised(dataset, "sentence_permutation", text)}
    assert orders == {tuple(text), (TEXT[104], *TEXT[100:104], end)}


def test_a_document_is_rotated_to_any_of_its_tokens(dataset: Dataset) -> None:
    found = noised(dataset, "document_rotation", TEXT[:10])
    assert {int(text[0]) for text in found} == set(TEXT[:10].tolist())
    for text in found:
        assert np.array_equal(np.roll(text, int(text[0]) - 5), TEXT[:10])
