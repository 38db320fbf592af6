"""Each window is behind the code of its source, which is never predicted; every token of text is, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.registry import OBJECTIVES

CODES = {"wiki": "Wikipedia", "books": "A book: "}
LENGTH = 32


def _recipe(dataset: Dataset, codes: dict[str, str] = CODES, length: int = LENGTH) -> Recipe:
    return OBJECTIVES["control"](codes=codes).recipe(dataset.tokenizer(), length)


@pytest.fixture
def sources(dataset: Dataset, second: Dataset) -> list[tuple[Dataset, float]]:
    wiki, books = (Dataset(d.directory, name=n) for d, n in zip((dataset, second), CODES, strict=True))
    return [(wiki, 1.0), (books, 1.0)]


def test_a_row_begins_with_the_code_of_its_source_and_predicts_text_alone(sources: list[Any]) -> None:
    recipe, tokenizer = _recipe(sources[0][0]), sources[0][0].tokenizer()
    codes = [code.tolist() for code in tokenizer.encode_batch(list(CODES.values()))]
    assert len(codes[0]) != len(codes[1])
    batch = SampleStream(sources, recipe, seed=3).batch(0, 64)
    assert {source for source, _, _ in batch.sample_ids.tolist()} == {0, 1}
    for (source, _, number), tokens, labels, mask in zip(
        batch.sample_ids.tolist(), batch.tokens, batch.labels, batch.loss_mask, strict=True
    ):
        own = len(codes[source])
        text = sources[source][0].read("train", np.array([number * (LENGTH - own + 1)]), LENGTH - own + 1)[0]
        assert tokens.tolist() == [*codes[source], *text[:-1]]
        assert labels[mask > 0].tolist() == text.tolist()
        assert mask.tolist() == [0.0] * (own - 1) + [1.0] * (LENGTH - own + 1)


def test_every_token_of_text_is_predicted_once(sources: list[Any]) -> None:
    (wiki, _), _ = sources
    samples = _recipe(wiki).samples(wiki, "validation")
    ids = np.array([[0, 0, number] for number in range(samples.count)])
    rows = samples.rows(0, ids)
    said = rows.labels[rows.loss_mask > 0]
    assert said.tolist() == wiki.read("validation", np.array([0]), len(said))[0].tolist()
    assert wiki.num_tokens("validation") - len(said) < LENGTH
    spans = samples.token_spans(0, ids)
    assert spans[:, 2].sum() == len(said)


def test_a_code_of_one_token_leaves_a_whole_row_to_predict(dataset: Dataset) -> None:
    """[code] and 255 tokens predict 256 (Keskar et al. 2019)."""
    one = dataset.tokenizer().decode([dataset.tokenizer().encode_batch(["a"])[0].tolist()[-1]])
    code = one if len(dataset.tokenizer().encode_batch([one])[0]) == 1 else "a"
    assert len(dataset.tokenizer().encode_batch([code])[0]) == 1
    rows = _recipe(dataset, {"set": code}, 256).samples(dataset, "train").rows(0, np.array([[0, 0, 0]]))
    assert rows.tokens.shape == rows.labels.shape == (1, 256)
    assert rows.loss_mask.sum() == 256


def test_a_source_without_a_code_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"no code for the source set .* it has wiki, books"):
        _recipe(dataset).samples(dataset, "train")
    with pytest.raises(DataError, match=r"objective\.codes\.wiki='' is 0 tokens"):
        _recipe(dataset, {"wiki": ""})
