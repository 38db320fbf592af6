"""CANINE's samples: words or subwords of a text of characters, masked and predicted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.characters import (
    CharacterObjective,
    CharacterSpans,
    CharacterSubwords,
    CharacterSubwordsRecipe,
)
from data_pipeline.tokenizers.characters import CharacterTokenizer
from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from tests.helpers import released
from tests.helpers.datasets import build_dataset

LENGTH, MASK = 256, 0xE003
WORDS = ["a", "tree", "grüne", "Häuser", "日本語", "und", "stone", "river", "of", "42"]


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 60)) for _ in range(120)]
    folder = tmp_path_factory.mktemp("characters")
    return build_dataset(texts, folder, tokenizer={"type": "characters"})


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 200, "bpe", 320)
    path = tmp_path_factory.mktemp("subwords") / tokenizer.file_name
    tokenizer.save(path)
    return path


@pytest.fixture(params=["spans", "subwords"])
def objective(request: pytest.FixtureRequest, subwords: Path) -> CharacterObjective:
    return CharacterSpans() if request.param == "spans" else CharacterSubwords(subwords=subwords)


def _ids(count: int, epoch: int = 0) -> np.ndarray:
    return np.stack([np.zeros(count, np.int64), np.full(count, epoch), np.arange(count)], axis=1)


def _text(dataset: Dataset, row: int) -> np.ndarray:
    window = dataset.window("train", row * (LENGTH - 2), LENGTH - 2)
    return np.concatenate([[0xE000], window, [0xE001]])


def test_samples_are_the_same_in_any_batch_and_others_in_each_epoch(
    characters: Dataset, objective: CharacterObjective
) -> None:
    recipe = objective.recipe(characters.tokenizer(), LENGTH)
    streams = [SampleStream([(characters.directory, 1.0)], recipe, seed=5) for _ in range(2)]
    whole = streams[0].batch(0, 8)
    halves = [streams[1].batch(0, 8, rank, 2) for rank in range(2)]
    for name, _, values in whole.columns():
        assert np.array_equal(values, np.concatenate([getattr(half, name) for half in halves])), name
    samples = recipe.samples(characters, "train")
    first, again, later = (samples.rows(1, _ids(4, epoch)) for epoch in (0, 0, 1))
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, later.tokens)


def test_what_is_not_predicted_is_the_text(characters: Dataset, objective: CharacterObjective) -> None:
    recipe = objective.recipe(characters.tokenizer(), LENGTH)
    rows = recipe.samples(characters, "train").rows(0, _ids(20))
    assert rows.labels.shape == (20, recipe.target_length)
    assert rows.label_positions is not None
    for number, (tokens, places, mask) in enumerate(
        zip(rows.tokens, rows.label_positions, rows.loss_mask, strict=True)
    ):
        text, asked = _text(characters, number), places[mask > 0]
        assert len(set(asked.tolist())) == len(asked) > 0
        assert np.isin(text[asked], [0xE000, 0xE001]).sum() == 0
        assert (tokens != text).mean() < 0.3


def test_spans_are_whole_words_in_a_random_order(characters: Dataset) -> None:
    recipe = CharacterSpans().recipe(characters.tokenizer(), LENGTH)
    assert (recipe.target_length, recipe.vocabulary) == (40, 16384)
    rows, shares, ordered = recipe.samples(characters, "train").rows(0, _ids(60)), [], 0
    assert rows.label_positions is not None
    for number, tokens in enumerate(rows.tokens):
        text, masked = _text(characters, number), np.flatnonzero(tokens == MASK)
        asked = rows.label_positions[number][rows.loss_mask[number] > 0]
        assert np.array_equal(np.sort(asked), masked)
        assert np.array_equal(rows.labels[number][: len(asked)], text[asked] % 16384)
        before = "".join(map(chr, text)).replace("\ue000", " ").replace("\ue001", " ")
        after = "".join(map(chr, np.where(tokens == MASK, MASK, text))).replace("\ue000", " ").replace("\ue001", " ")
        for old, new in zip(before.split(), after.split(), strict=True):
            assert new in (old, chr(MASK) * len(old)), "a word is masked in part"
        shares.append(len(masked) / (LENGTH - 2))
        ordered += bool((np.diff(asked) > 0).all())
    assert 0.12 < np.mean(shares) <= 0.151
    assert ordered < 3


def test_a_text_without_white_space_is_cut_at_the_limit(characters: Dataset) -> None:
    recipe = CharacterSpans(max_predictions=7).recipe(characters.tokenizer(), LENGTH)
    row = np.full(LENGTH, ord("日"))
    tokens, places, labels = recipe.predictions(row, np.random.default_rng(0))
    assert len(places) == (tokens == MASK).sum() == 7
    assert (labels == ord("日") % 16384).all()
    spaces = np.full(LENGTH, ord(" "))
    assert not len(recipe.predictions(spaces, np.random.default_rng(0))[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我们的 ABC公司，好。", ["我", "们", "的", "ABC", "公", "司", "，", "好。"]),
        ("ฉันก็ ok", ["ฉั", "น", "ก็", "ok"]),
        ("यह है। नहीं", ["यह", "है।", "नहीं"]),
        ("abc defghijklmn", ["abc", "defgh", "ijklm", "n"]),  # of which no more than five may be masked
    ],
)
def test_words_of_any_writing_are_masked(text: str, words: list[str]) -> None:
    recipe = CharacterSpans(boundaries="unicode", max_predictions=5).recipe(CharacterTokenizer(), LENGTH)
    row = np.array([0xE000, *map(ord, text), 0xE001])
    starts, sizes = recipe._words(row, recipe.is_text(row), 5)
    assert ["".join(map(chr, row[a : a + size])) for a, size in zip(starts, sizes, strict=True)] == words


def test_a_row_without_white_space_is_masked_everywhere() -> None:
    recipe = CharacterSpans(boundaries="unicode").recipe(CharacterTokenizer(), LENGTH)
    row = np.array([0xE000, *[ord("日")] * (LENGTH - 2), 0xE001])
    rows = [recipe.predictions(row, np.random.default_rng(seed)) for seed in range(40)]
    assert {len(places) for _, places, _ in rows} == {round(0.15 * (LENGTH - 2))}
    masked = np.mean([tokens == MASK for tokens, _, _ in rows], axis=0)
    assert masked[[0, -1]].max() == 0
    assert 0 < masked[1:-1].min() <= masked.max() < 0.5


def _of_subwords(characters: Dataset, subwords: Path) -> CharacterSubwordsRecipe:
    return CharacterSubwords(subwords=subwords).recipe(characters.tokenizer(), LENGTH)


def test_subwords_are_read_as_they_were_released(characters: Dataset, tmp_path: Path) -> None:
    pieces = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "é", "e"]) + "\n"
    settings = {"tokenizer_config.json": {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}}
    folder = released.write(tmp_path / "cased", pieces, settings, "vocab.txt")
    assert _of_subwords(characters, folder / "vocab.txt").subwords.encode("é") == [5]


def test_subwords_are_those_of_the_tokenizer(characters: Dataset, subwords: Path) -> None:
    """Masked, replaced or kept 8 : 1 : 1, each predicted once, at any of its characters, and replaced by a subword of
    the same length."""
    recipe, tokenizer = _of_subwords(characters, subwords), load_tokenizer(subwords)
    texts = tokenizer.texts()
    assert (recipe.target_length, recipe.vocabulary) == (10, tokenizer.vocabulary_size)
    rows, kinds, places_within, of_text = recipe.samples(characters, "train").rows(0, _ids(70)), Counter[str](), [], 0
    assert rows.label_positions is not None
    known = {text.strip() for text in texts}
    for number, tokens in enumerate(rows.tokens):
        text = _text(characters, number)
        asked = int(rows.loss_mask[number].sum())
        spans = {(first, index): size for index, first, size in recipe._spans(text)}
        of_text += len(spans)
        for place, label in zip(rows.label_positions[number][:asked], rows.labels[number][:asked], strict=True):
            first, size = next((f, n) for (f, i), n in spans.items() if i == label and f <= place < f + n)
            piece = "".join(map(chr, text[first : first + size]))
            assert texts[label].strip() == piece
            now = "".join(map(chr, tokens[first : first + size]))
            kind = "masked" if now == chr(MASK) * size else "kept" if now == piece else "replaced"
            assert kind != "replaced" or now in known
            kinds[kind] += 1
            places_within += [place - first] if size > 2 else []
    total = kinds.total()
    assert kinds["masked"] / total == pytest.approx(0.8, abs=0.06)
    assert kinds["replaced"] / total > 0.04
    assert set(places_within) >= {0, 1, 2}
    assert total <= 0.16 * of_text


def test_the_tokenizer_of_subwords_counts_and_its_file_name_does_not(
    characters: Dataset, subwords: Path, tmp_path: Path
) -> None:
    copy = tmp_path / subwords.name
    copy.write_bytes(subwords.read_bytes())
    other = tmp_path / "other.model"
    train_tokenizer([" ".join(WORDS)] * 200, "bpe", 300).save(other)
    one, same, different = (_of_subwords(characters, path).settings for path in (subwords, copy, other))
    assert one == same != different


def test_another_kind_of_dataset_is_refused(dataset: Dataset, objective: CharacterObjective) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.type=characters"):
        objective.recipe(dataset.tokenizer(), LENGTH)


def test_texts_come_back_from_their_code_points(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer()
    tokenizer.save(tmp_path / tokenizer.file_name)
    read = load_tokenizer(tmp_path)
    assert isinstance(read, CharacterTokenizer)
    for text in ("", "grüne Häuser\n日本語 \U0001f469", "\ufffd\u2028"):
        assert read.decode(read.encode(text)) == text
        assert read.encode(text) == list(map(ord, text))
    assert read.encode("\0[MASK]\ue003") == [0xFFFD, *map(ord, "[MASK]"), 0xFFFD], "no text encodes to special pieces"
    assert [read.id_of(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")] == [0xE000, 0xE001, MASK, 0]


def test_two_segments_of_one_document_or_of_two(characters: Dataset, objective: CharacterObjective) -> None:
    more = {"buckets": 2**16} if isinstance(objective, CharacterSpans) else {}
    objective = objective.model_copy(update={"next_sentence": True, **more})
    recipe = objective.recipe(characters.tokenizer(), LENGTH)
    rows = recipe.samples(characters, "train").rows(0, _ids(60))
    assert rows.next_sentence is not None
    assert rows.segments is not None
    assert rows.attention_mask is not None
    assert rows.label_positions is not None
    assert 15 < rows.next_sentence.sum() < 45
    assert (rows.attention_mask.sum(axis=1) < LENGTH).any()
    text = characters.window("train", 0, characters.num_tokens("train"))
    stream = "".join(map(chr, text))
    for number, row in enumerate(rows.tokens):
        count, places = int(rows.attention_mask[number].sum()), rows.label_positions[number]
        ends = np.flatnonzero(row == 0xE001)
        assert row[0] == 0xE000
        assert list(rows.segments[number, :count]) == [0] * (ends[0] + 1) + [1] * (count - ends[0] - 1)
        assert (ends[-1] + 1, len(ends)) == (count, 2)
        assert not row[count:].any()
        asked_at = places[rows.loss_mask[number] > 0]
        assert len(asked_at) > 0
        assert asked_at.max() < count
        if isinstance(objective, CharacterSpans):
            full = row.copy()
            full[asked_at] = rows.labels[number][rows.loss_mask[number] > 0]
            joined = "".join(map(chr, np.delete(full[1 : ends[1]], ends[0] - 1)))
            if len(joined) > 60 and max(map(ord, joined)) < objective.buckets:  # no label is another character
                assert (joined in stream) == bool(rows.next_sentence[number])
