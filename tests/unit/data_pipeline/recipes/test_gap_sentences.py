"""PEGASUS's samples: what a document says is left out once and written out, and the sentences that say most of the rest
are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.base import generator
from data_pipeline.recipes.gap_sentences import GapSentences, GapSentencesSamples, rouge_of_rest

LENGTH = 64


def _samples(dataset: Dataset, **settings: object) -> GapSentencesSamples:
    recipe = GapSentences(**settings).recipe(dataset.tokenizer(), LENGTH)  # type: ignore[arg-type]
    return recipe.samples(dataset, "train")


def _ids(count: int) -> np.ndarray:
    return np.stack([np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)], axis=1)


@pytest.mark.parametrize("selection", ["principal", "random", "lead"])
def test_input_and_target_together_are_the_text(dataset: Dataset, selection: str) -> None:
    samples = _samples(dataset, selection=selection)
    mask, end = samples.recipe.known.specials.mask, samples.recipe.known.specials.end
    rows = samples.rows(0, _ids(60))
    assert rows.attention_mask is not None
    for number, (row, start, size) in enumerate(samples.token_spans(0, _ids(60)).tolist()):
        assert row == number
        text = dataset.window("train", start, size)
        inputs = rows.tokens[row][rows.attention_mask[row]].tolist()
        target = rows.labels[row][rows.loss_mask[row] > 0].tolist()
        assert inputs.pop() == target.pop() == end
        sentences = [one.tolist() for one in samples.recipe.sentences(text)]
        gaps = iter(np.flatnonzero(samples.recipe.chosen([np.array(s) for s in sentences], _generator(samples, row))))
        shown = []
        for token in inputs:
            shown += sentences[next(gaps)] if token == mask else [token]
        assert shown == text.tolist()
        assert mask in inputs
        assert set(inputs) != {mask}
        assert target == [t for n, s in enumerate(sentences) if not _is_shown(inputs, sentences, n, mask) for t in s][
            : samples.recipe.target_length - 1
        ]  # fmt: skip


def _generator(samples: GapSentencesSamples, row: int) -> np.random.Generator:
    return generator(0, _ids(row + 1)[row])


def _is_shown(inputs: list[int], sentences: list[list[int]], number: int, mask: int) -> bool:
    """Whether a sentence stands in the input, by walking through both."""
    place = 0
    for index, sentence in enumerate(sentences):
        gap = inputs[place] == mask
        if index == number:
            return not gap
        place += 1 if gap else len(sentence)
    raise AssertionError


def test_scores_are_rouge_1_of_each_sentence_against_the_rest() -> None:
    draw = np.random.default_rng(0)
    sentences = [draw.integers(0, 12, draw.integers(1, 9)) for _ in range(7)]
    found = rouge_of_rest(sentences)
    scorer = RougeScorer(["rouge1"])
    words = [" ".join(f"w{token}" for token in sentence) for sentence in sentences]
    for number, score in enumerate(found):
        rest = " ".join(words[:number] + words[number + 1 :])
        assert score == pytest.approx(scorer.score(rest, words[number])["rouge1"].fmeasure)


def test_principal_sentences_are_the_best_and_lead_ones_the_first(dataset: Dataset) -> None:
    sentences = [np.array(tokens) for tokens in ([1, 2], [3, 4, 5, 6], [3, 4, 7], [5, 6, 8], [9], [1, 3])]
    of = {
        selection: _samples(dataset, selection=selection, gap_fraction=0.34).recipe.chosen(
            sentences, np.random.default_rng(1)
        )
        for selection in ("principal", "lead", "random")
    }
    best = np.argsort(-rouge_of_rest(sentences), kind="stable")[:2]
    assert np.flatnonzero(of["principal"]).tolist() == sorted(best.tolist())
    assert 1 in best, "which shares all of its tokens"
    assert np.flatnonzero(of["lead"]).tolist() == [0, 1]
    assert of["random"].sum() == 2


def test_noise_changes_which_are_principal_and_kept_ones_stay(dataset: Dataset) -> None:
    plain, noisy, keeping = (
        _samples(dataset, **settings).rows(3, _ids(80))
        for settings in ({}, {"score_noise": 0.9}, {"kept_fraction": 1.0})
    )
    assert 0 < (plain.tokens != noisy.tokens).any(axis=1).mean() < 1
    assert np.array_equal(plain.labels, keeping.labels)
    mask = _samples(dataset).recipe.known.specials.mask
    assert not (keeping.tokens == mask).any()
    assert (plain.tokens == mask).any(axis=1).all()


def test_a_sample_is_the_same_in_any_batch_on_any_rank(dataset: Dataset) -> None:
    objective = GapSentences(score_noise=0.2, kept_fraction=0.2)
    stream = SampleStream([(dataset.directory, 1.0)], objective.recipe(dataset.tokenizer(), LENGTH), seed=5)
    whole = stream.batch(40, 24)
    assert whole.decoder_tokens is not None
    for size, world in ((1, 1), (8, 4), (24, 3)):
        parts = [stream.batch(start, size, rank, world) for start in range(40, 64, size) for rank in range(world)]
        for name in ("tokens", "labels", "loss_mask", "decoder_tokens", "attention_mask"):
            assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
