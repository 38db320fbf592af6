"""T5's objectives: the text comes back out of input and target, and both have the lengths that were promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.corruption import CorruptionRecipe
from data_pipeline.recipes.registry import OBJECTIVES
from data_pipeline.recipes.span_corruption import SpanCorruption, random_partition

COUNT = 64


def samples(
    dataset: Dataset, name: str, length: int = 64, target_length: int | None = None, **objective: Any
) -> tuple[CorruptionRecipe, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """(text, input, target) of COUNT samples, without padding."""
    recipe = OBJECTIVES[name](**objective).recipe(dataset.tokenizer(), length, target_length)
    assert isinstance(recipe, CorruptionRecipe)
    stream = SampleStream([(dataset.directory, 1.0)], recipe, 0)
    batch, size = stream.batch(0, COUNT), recipe.text_tokens
    texts = [dataset.window("train", number * size, size) for number in batch.sample_ids[:, 2].tolist()]
    visible = np.ones(batch.tokens.shape, bool) if batch.attention_mask is None else batch.attention_mask
    start = recipe.known.specials.start
    assert batch.decoder_tokens is not None
    assert (batch.decoder_tokens[:, 0] == start).all()
    assert np.array_equal(batch.decoder_tokens[:, 1:], batch.labels[:, :-1])
    assert (batch.tokens[~visible] == recipe.known.specials.pad).all()
    rows = zip(texts, batch.tokens, visible, batch.labels, batch.loss_mask > 0, strict=True)
    found = [(text, tokens[seen], labels[counted]) for text, tokens, seen, labels, counted in rows]
    for _, inputs, target in found:
        assert inputs[-1] == target[-1] == recipe.known.specials.end
    return recipe, [(text, inputs[:-1], target[:-1]) for text, inputs, target in found]


@pytest.mark.parametrize(("density", "mean", "length"), [(0.15, 3, 64), (0.5, 2, 33), (0.3, 10, 40), (0.8, 1, 30)])
def test_span_corruption_loses_nothing_and_fills_its_rows(
    dataset: Dataset, density: float, mean: float, length: int
) -> None:
    recipe, found = samples(dataset, "span_corruption", length, noise_density=density, mean_span=mean)
    assert isinstance(recipe.objective, SpanCorruption)
    noise, spans = recipe.objective.span_counts(recipe.text_tokens)
    sentinels = recipe.known.specials.sentinels[:spans]
    for text, inputs, target in found:
        assert len(target) + 1 == recipe.target_length
        assert np.isin(inputs, sentinels).sum() == np.isin(target, sentinels).sum() == spans
        assert [token for token in inputs if token in sentinels] == list(sentinels)
        assert target[0] == sentinels[0]
        assert inputs[0] == text[0]
        hidden = dict(zip(sentinels, np.split(target, np.flatnonzero(np.isin(target, sentinels)))[1:], strict=True))
        assert all(span.size > 1 for span in hidden.values())
        pieces = [hidden[token][1:] if token in hidden else [token] for token in inputs]
        assert np.array_equal(np.concatenate(pieces), text)
        assert len(text) - (len(inputs) - spans) == noise
    assert len({tuple(inputs) for _, inputs, _ in found}) > COUNT // 2
    assert recipe.shape.full_inputs == all(len(inputs) + 1 == length for _, inputs, _ in found)


def test_spans_of_the_defaults_fill_inputs_and_targets_exactly(dataset: Dataset) -> None:
    recipe, found = samples(dataset, "span_corruption", 512)
    assert recipe.target_length == 114
    assert all((len(inputs), len(target)) == (511, 113) for _, inputs, target in found)
    _, padded = samples(dataset, "span_corruption", 512, 128)
    assert all(np.array_equal(one[2], other[2]) for one, other in zip(found, padded, strict=True))


def test_all_divisions_into_segments_are_equally_likely() -> None:
    random = np.random.default_rng(0)
    drawn = [tuple(random_partition(5, 3, random).tolist()) for _ in range(6000)]
    expected = {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert set(drawn) == expected
    assert all(abs(drawn.count(lengths) - 1000) < 5 * np.sqrt(1000 * 5 / 6) for lengths in expected)
    assert random_partition(4, 1, random).tolist() == [4]
    assert random_partition(4, 4, random).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("name", "random_share"), [("bert_style", 0.1), ("mass_style", 0.0)])
def test_masked_text_is_to_be_written_out_whole(dataset: Dataset, name: str, random_share: float) -> None:
    recipe, found = samples(dataset, name, 128)
    changed = masked = total = 0
    for text, inputs, target in found:
        assert np.array_equal(target, text)
        assert len(inputs) == len(text) == 127
        is_mask = inputs == recipe.known.specials.mask
        changed += ((inputs != text) & ~is_mask).sum()
        masked += is_mask.sum()
        total += len(text)
        assert not recipe.known.is_special[inputs[(inputs != text) & ~is_mask]].any()
    for count, share in ((masked, 0.15 * (1 - random_share)), (changed, 0.15 * random_share)):
        assert abs(count - share * total) <= 5 * np.sqrt(total * share)
    assert (changed > 0) == (random_share > 0)


def test_dropped_tokens_are_the_target(dataset: Dataset) -> None:
    _, found = samples(dataset, "drop", 128)
    assert abs(np.mean([len(target) for _, _, target in found]) - 0.15 * 127) < 5 * np.sqrt(127 * 0.15 * 0.85 / COUNT)
    for text, inputs, target in found:
        assert len(inputs) + len(target) == len(text) == 127
        assert _is_within(inputs, text)
        assert _is_within(target, text)
        assert np.array_equal(np.sort(np.concatenate([inputs, target])), np.sort(text))


def test_no_more_is_dropped_than_the_target_holds(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.recipes.t5_study._DEVIATIONS", 0)
    recipe, found = samples(dataset, "drop", 128)
    assert recipe.target_length == 20 + 1
    assert max(len(target) for _, _, target in found) == 20
    assert all(len(inputs) + len(target) == 127 for _, inputs, target in found)


def test_a_prefix_and_what_comes_after_it(dataset: Dataset) -> None:
    _, found = samples(dataset, "prefix_lm", 64)
    assert all(np.array_equal(np.concatenate([inputs, target]), text) for text, inputs, target in found)
    cuts = [len(inputs) for _, inputs, _ in found]
    assert min(cuts) >= 1
    assert max(cuts) <= 62
    assert np.std(cuts) > 10


def test_shuffled_tokens_are_to_be_put_in_order(dataset: Dataset) -> None:
    _, found = samples(dataset, "deshuffling", 64)
    for text, inputs, target in found:
        assert np.array_equal(target, text)
        assert np.array_equal(np.sort(inputs), np.sort(text))
        assert (inputs != text).mean() > 0.5


def _is_within(part: np.ndarray, whole: np.ndarray) -> bool:
    rest = iter(whole.tolist())
    return all(token in rest for token in part.tolist())


def test_numbers_of_spans_are_rounded_to_the_nearest() -> None:
    """T5's `random_spans_noise_mask` rounds the same way."""
    counts = [SpanCorruption().span_counts(tokens) for tokens in (2, 10, 568, 573, 580)]
    assert counts == [(1, 1), (2, 1), (85, 28), (86, 29), (87, 29)]
    assert SpanCorruption(noise_density=0.75, mean_span=1.0).span_counts(100) == (75, 25), "one token between two"
