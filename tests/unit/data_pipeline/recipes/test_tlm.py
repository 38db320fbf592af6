"""A text and its translation in one row: masks on both sides, positions anew, a language for each token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.tlm import Translation
from tests.helpers.datasets import build_pairs

LENGTH = 32


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    texts = [(f"der Satz {i} ist lang", f"sentence {i}") for i in range(200)]
    return build_pairs(texts, tmp_path_factory.mktemp("pairs"))


def test_positions_begin_anew_and_tokens_have_the_language_of_their_text(pairs: Dataset) -> None:
    recipe = Translation(source_language=4, target_language=2).recipe(pairs.tokenizer(), LENGTH)
    rows, specials = SampleStream([(pairs.directory, 1.0)], recipe, 1).batch(0, 100), recipe.known.specials
    assert rows.segments is not None
    assert rows.positions is not None
    assert rows.attention_mask is not None
    masked = [0, 0]
    for row, labels in enumerate(rows.labels):
        first, second = np.flatnonzero(labels == specials.cls)
        ends = np.flatnonzero(labels == specials.sep)
        assert first == 0
        assert ends[0] == second - 1
        assert rows.attention_mask[row].sum() == ends[1] + 1
        assert rows.segments[row, : ends[1] + 1].tolist() == [4] * second + [2] * (ends[1] + 1 - second)
        assert rows.positions[row, : ends[1] + 1].tolist() == [*range(second), *range(ends[1] + 1 - second)]
        text = pairs.tokenizer().decode(labels[1 : ends[0]]), pairs.tokenizer().decode(labels[second + 1 : ends[1]])
        assert text[0].strip().startswith("der Satz")
        assert text[0].split()[2] == text[1].split()[1], "a pair's own"
        masked[0] += rows.loss_mask[row, :second].sum()
        masked[1] += rows.loss_mask[row, second:].sum()
    assert min(masked) > 0, "both sides"
    special = recipe.known.is_special[rows.labels]
    assert not (rows.loss_mask[special] > 0).any()
    assert 0.1 < rows.loss_mask.sum() / (~special).sum() < 0.2


def test_a_pair_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    texts = [(f"der Satz {i} ist lang", f"sentence {i} " * (1 + 9 * (i % 3 == 0))) for i in range(200)]
    dataset = build_pairs(texts, tmp_path)
    samples = Translation().recipe(dataset.tokenizer(), LENGTH).samples(dataset, "train")
    assert samples.num_skipped > 0
    assert samples.count + samples.num_skipped == dataset.manifest.splits["train"].documents
    with pytest.raises(DataError, match="fits 6 positions with two"):
        Translation().recipe(dataset.tokenizer(), 6).samples(dataset, "train")
