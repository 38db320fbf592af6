"""XLNet's samples: halves of the stream, what is predicted of them, in which order, and who sees whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.permuted import Permuted, PermutedRecipe
from tests.helpers.datasets import build_dataset, make_documents

LENGTH, TEXT, TARGETS = 600, 512, 85


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    documents = [text.replace(" ", " one. ", 2) for text in make_documents(3, 1500)]
    return build_dataset(documents, tmp_path_factory.mktemp("words"), tokenizer={"type": "bpe", "vocabulary": 500})


@pytest.fixture(scope="module")
def made(words: Dataset) -> tuple[PermutedRecipe, Rows]:
    recipe = Permuted().recipe(words.tokenizer(), LENGTH)
    return recipe, SampleStream([(words.directory, 1.0)], recipe, 1).batch(0, 64)


def _sees(order: np.ndarray) -> np.ndarray:
    """[S, S] whether each position attends to each other, by the column's definition."""
    return (order[None, :] % 2 == 0) & (order[None, :] <= order[:, None])


def test_rows_have_the_published_text_and_predictions(made: tuple[PermutedRecipe, Rows]) -> None:
    recipe, rows = made
    assert 2 * recipe.half == TEXT
    assert rows.order is not None
    assert (rows.loss_mask.sum(axis=1) == TARGETS).all()
    assert not rows.loss_mask[:, :TEXT].any()
    assert ((rows.order % 2 == 1) == (np.arange(LENGTH) >= TEXT)).all(), "queries, and only they"


def test_a_query_stands_for_a_token_that_it_is_to_predict(made: tuple[PermutedRecipe, Rows]) -> None:
    recipe, rows = made
    assert rows.positions is not None
    assert rows.segments is not None
    for row, mask in enumerate(rows.loss_mask > 0):
        places = rows.positions[row, mask]
        assert (np.diff(places) > 0).all(), "each once"
        assert np.array_equal(rows.labels[row, mask], rows.tokens[row, places])
        assert np.array_equal(rows.segments[row, mask], rows.segments[row, places])
        assert (rows.tokens[row, TEXT:] == recipe.known.specials.pad).all(), "its token is in no query"
        assert [(places < TEXT // 2).sum(), (places >= TEXT // 2).sum()] == [43, 42]
        assert not np.isin(places, np.flatnonzero(np.isin(rows.tokens[row], _around(recipe))[:TEXT])).any()


def _around(recipe: PermutedRecipe) -> tuple[int, int]:
    return recipe.known.specials.sep, recipe.known.specials.cls


def test_who_sees_whom(made: tuple[PermutedRecipe, Rows]) -> None:
    """Rules of the authors' code (data_utils.py, `_local_perm`), written for one pair of positions at a time."""
    recipe, rows = made
    assert rows.order is not None
    assert rows.positions is not None
    half = TEXT // 2
    for row in range(4):
        order, sees = rows.order[row], _sees(rows.order[row])
        (queries,) = np.nonzero(rows.loss_mask[row])
        query_of = {int(rows.positions[row, query]): int(query) for query in queries}
        hidden = set(query_of) | set(np.flatnonzero(np.isin(rows.tokens[row, :TEXT], _around(recipe))))
        assert not sees[:, TEXT:].any(), "nothing attends to a query"
        for at in range(0, TEXT, 3):
            for key in range(0, TEXT, 5):
                if key // half != at // half:
                    expected = key < at  # the second half sees all of the first
                elif key not in hidden:
                    expected = True
                elif at not in hidden:
                    expected = False
                else:
                    expected = order[key] <= order[at]
                assert sees[at, key] == expected, (at, key)
                if at in query_of:
                    assert sees[query_of[at], key] == (expected and key != at), (at, key)
        for half_number in range(2):
            turns = [order[at] for at in hidden if at // half == half_number]
            assert len(set(turns)) == len(turns), "one after the other"


def test_every_order_is_as_likely(made: tuple[PermutedRecipe, Rows]) -> None:
    _, rows = made
    assert rows.order is not None
    mask = rows.loss_mask > 0
    first, last = (np.array([order[m][at] for order, m in zip(rows.order, mask, strict=True)]) for at in (0, 42))
    assert 0.3 < (first < last).mean() < 0.7


def test_spans_are_short_and_shorter_ones_are_more_frequent(made: tuple[PermutedRecipe, Rows]) -> None:
    _, rows = made
    assert rows.positions is not None
    sizes = []
    for positions, mask in zip(rows.positions, rows.loss_mask > 0, strict=True):
        places = positions[mask]
        ends = np.flatnonzero(np.diff(places) > 1)
        sizes += np.diff(np.concatenate([[-1], ends, [len(places) - 1]])).tolist()
    counts = np.bincount(sizes, minlength=7)
    assert counts[1] > counts[2] > counts[3] > counts[5] > 0
    assert counts[6:].sum() < 0.1 * counts[1:].sum(), "neighbouring spans look like one"


def test_texts_are_the_stream_and_the_second_segment_follows_or_comes_from_elsewhere(
    made: tuple[PermutedRecipe, Rows], words: Dataset
) -> None:
    recipe, _ = made
    samples, half = recipe.samples(words, "train"), recipe.half
    assert (samples.count + 1) * half - 3 <= words.num_tokens("train") < (samples.count + 2) * half - 3
    ids = np.stack([np.zeros(samples.count), np.zeros(samples.count), np.arange(samples.count)], axis=1).astype(int)
    rows, spans = samples.rows(1, ids), samples.token_spans(1, ids).reshape(-1, 2, 3)
    follows = []
    for row, ((_, start, count), (_, second, rest)) in enumerate(spans.tolist()):
        assert start == row * half
        assert count + rest + 3 == TEXT
        text = rows.tokens[row, :TEXT]
        assert np.array_equal(text[:count], words.window("train", start, count))
        assert np.array_equal(text[count + 1 : -2], words.window("train", second, rest))
        specials = recipe.known.specials
        assert text[[count, -2, -1]].tolist() == [specials.sep, specials.sep, specials.cls]
        assert rows.segments is not None
        assert rows.segments[row, :TEXT].tolist() == [0] * (count + 1) + [1] * (rest + 1) + [2]
        follows.append(second == start + count)
    assert 0.35 < np.mean(follows) < 0.65


def test_text_is_read_from_both_ends(words: Dataset) -> None:
    """Windows of the split read backwards follow those read forwards; positions count down, so that distances are those
    of the text; words are predicted from their beginning, and sentences are whole."""
    recipe = Permuted(bi_data=True).recipe(words.tokenizer(), LENGTH)
    samples, once = recipe.samples(words, "train"), Permuted().recipe(words.tokenizer(), LENGTH).samples(words, "train")
    assert samples.count == 2 * once.count
    numbers = np.arange(samples.count)
    ids = np.stack([np.zeros_like(numbers), np.zeros_like(numbers), numbers], axis=1)
    rows, spans = samples.rows(1, ids), samples.token_spans(1, ids).reshape(-1, 2, 3)
    total, half, known = words.num_tokens("train"), recipe.half, recipe.known
    assert rows.positions is not None
    split, followed = 0, 0
    for number, ((_, start, count), (_, second, rest)) in enumerate(spans.tolist()):
        row, backward = rows.tokens[number, :TEXT], number >= once.count
        first, other = words.window("train", start, count), words.window("train", second, rest)
        if not backward:
            assert np.array_equal(row[:count], first)
            continue
        assert start == total - (number - once.count) * half - count
        assert np.array_equal(row[:count], first[::-1])
        assert np.array_equal(row[count + 1 : -2], other[::-1])
        assert np.array_equal(rows.positions[number, :TEXT], -np.arange(TEXT))
        places = -rows.positions[number, rows.loss_mask[number] > 0]
        assert np.array_equal(rows.labels[number, rows.loss_mask[number] > 0], row[places])
        assert [(places < half).sum(), (places >= half).sum()] == [43, 42]
        split += bool(known.ends_sentence[words.window("train", start - 1, 1)[0]])
        followed += second + rest == start
    backwards = once.count
    assert split > 0.9 * backwards, "the first segment begins, as it is written, behind the end of a sentence"
    assert 0.3 < followed / backwards < 0.7


def test_other_epochs_predict_others(words: Dataset) -> None:
    samples = Permuted().recipe(words.tokenizer(), LENGTH).samples(words, "train")
    first, again, later = (samples.rows(1, np.array([[0, epoch, 3]])) for epoch in (0, 0, 1))
    assert np.array_equal(first.order, again.order)  # type: ignore[arg-type]
    assert not np.array_equal(first.order, later.order)  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "text"), [(600, 512), (597, 508), (152, 128), (32, 24)])
def test_text_and_queries_fill_a_row(length: int, text: int) -> None:
    assert Permuted().text_tokens(length) == text


def test_too_short_rows_are_refused(words: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few"):
        Permuted().recipe(words.tokenizer(), 16)
