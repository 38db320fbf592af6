"""BERT's and RoBERTa's samples: what is masked, how, and where the two segments come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.masked import Masked, MaskedRecipe
from data_pipeline.recipes.masking import Masking, smoothed_weights
from data_pipeline.recipes.registry import OBJECTIVES
from data_pipeline.tokenizers.specials import Specials, Vocabulary
from tests.helpers.datasets import build_dataset, make_documents

LENGTH = 64


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    tokenizer = {"type": request.param, "vocabulary": 500}
    documents = [text.replace(" ", " one. ", 2) for text in make_documents(3, 300)]
    return build_dataset(documents, tmp_path_factory.mktemp("words"), tokenizer=tokenizer)


def batch_of(dataset: Dataset, count: int = 256, start: int = 0, **objective: Any) -> tuple[MaskedRecipe, Rows]:
    recipe = OBJECTIVES["masked"](**objective).recipe(dataset.tokenizer(), LENGTH)
    assert isinstance(recipe, MaskedRecipe)
    return recipe, SampleStream([(dataset.directory, 1.0)], recipe, 1).batch(start, count)


def test_roberta_s_rows_are_the_stream_between_cls_and_sep(words: Dataset) -> None:
    recipe, rows = batch_of(words)
    specials, text = recipe.known.specials, words.window("train", 0, words.num_tokens("train"))
    text = np.where(text == recipe.known.end_of_text, specials.sep, text)
    stream = SampleStream([(words.directory, 1.0)], recipe, 1)
    assert stream.num_samples == [len(text) // (LENGTH - 2)]
    for labels, (_, _, number) in zip(rows.labels, stream.sample_ids(0, 256).tolist(), strict=True):
        window = text[number * (LENGTH - 2) :][: LENGTH - 2]
        assert np.array_equal(labels, [specials.cls, *window, specials.sep])
    assert rows.attention_mask is rows.segments is rows.next_sentence is rows.decoder_tokens is None
    assert (rows.labels[:, 1:-1] == specials.sep).any()


@pytest.mark.parametrize(
    "objective",
    [
        {},
        {"next_sentence": True},
        {"whole_words": True},
        {"noise_density": 0.4},
        {"whole_words": True, "ngrams": 3},
    ],
)
def test_of_the_chosen_tokens_80_percent_are_masked_and_10_replaced(words: Dataset, objective: dict[str, Any]) -> None:
    recipe, rows = batch_of(words, 1024, **objective)
    special, chosen = recipe.known.is_special[rows.labels], rows.loss_mask > 0
    if rows.attention_mask is not None:
        special = special | ~rows.attention_mask
        assert np.array_equal(
            rows.tokens[~rows.attention_mask], np.full((~rows.attention_mask).sum(), recipe.known.specials.pad)
        )
    assert not (special & chosen).any()
    assert np.array_equal(rows.tokens[~chosen], rows.labels[~chosen])
    density = recipe.objective.noise_density
    budget = np.maximum(1, [round(density * count) for count in (~special).sum(axis=1)])
    if not objective.get("whole_words"):
        assert np.array_equal(chosen.sum(axis=1), budget)
    count = chosen.sum()
    tokens, labels = rows.tokens[chosen], rows.labels[chosen]
    masked = tokens == recipe.known.specials.mask
    replaced = ~masked & (tokens != labels)
    for found, share in ((masked.sum(), 0.8), (replaced.sum(), 0.1)):  # a random token may be the same one: 1 in 500
        assert abs(found - share * count) < 5 * np.sqrt(count * share * (1 - share)) + 0.001 * count
    assert not recipe.known.is_special[tokens[~masked]].any()
    assert len(np.unique(tokens[replaced])) > 200


def test_rare_tokens_are_masked_more_often_by_the_smoothing_of_their_counts(words: Dataset) -> None:
    """Positions of each row, drawn by numpy with these probabilities: by class of token, and by how rare it is."""
    smoothing = 0.7
    recipe, rows = batch_of(words, 1024, mask_smoothing=smoothing, noise_density=0.3)
    text = words.window("train", 0, words.num_tokens("train"))
    counts = np.maximum(1, np.bincount(text, minlength=recipe.vocabulary))
    assert np.array_equal(counts[: len(words.unigram_counts())], np.maximum(1, words.unigram_counts()))
    weights, random = counts**-smoothing, np.random.default_rng(1)
    ordinary, chosen = ~recipe.known.is_special[rows.labels], rows.loss_mask > 0
    assert not (chosen & ~ordinary).any()
    found, expected, plain = (np.zeros(recipe.vocabulary) for _ in range(3))
    draws = 4
    for labels, allowed, marked in zip(rows.labels, ordinary, chosen, strict=True):
        ids, budget = labels[allowed], int(marked.sum())
        assert budget == round(0.3 * len(ids))
        np.add.at(found, labels[marked], 1)
        np.add.at(plain, ids, budget / len(ids))
        for _ in range(draws):
            drawn = random.choice(len(ids), budget, replace=False, p=weights[ids] / weights[ids].sum())
            np.add.at(expected, ids[drawn], 1 / draws)
    spread = np.sqrt(expected * (1 + 1 / draws)) + 1
    assert (np.abs(found - expected) < 6 * spread).all()
    frequent = counts > np.median(np.repeat(counts, counts))
    assert found[frequent].sum() < 0.8 * plain[frequent].sum()
    assert found[frequent].sum() == pytest.approx(expected[frequent].sum(), rel=0.03)


def test_one_chosen_token_has_the_probability_of_its_smoothed_count(words: Dataset) -> None:
    known = batch_of(words, 1)[0].known
    rare, common = known.ordinary[:2]
    counts = np.ones(known.specials.vocabulary, np.int64)
    counts[rare], counts[common] = 10, 1000
    masking = Masking(
        known=known, noise_density=0.1, whole_words=False, weights=smoothed_weights(counts, 0.7, len(counts))
    )
    labels, random, draws = np.array([common] * 9 + [rare]), np.random.default_rng(2), 4000
    share = sum(masking.masked(labels, random)[1][-1] for _ in range(draws)) / draws
    wanted = 10**-0.7 / (10**-0.7 + 9 * 1000**-0.7)
    assert abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / draws)


def test_smoothing_is_of_single_tokens() -> None:
    with pytest.raises(ValueError, match="chooses single tokens"):
        OBJECTIVES["masked"](whole_words=True, mask_smoothing=0.7)


@pytest.mark.parametrize(("settings", "share"), [({}, 0.85), ({"masked_fraction": 1.0}, 1.0)])
def test_before_a_generator_tokens_are_masked_or_stay(words: Dataset, settings: dict[str, Any], share: float) -> None:
    recipe = OBJECTIVES["replaced_tokens"](**settings).recipe(words.tokenizer(), LENGTH)
    rows = SampleStream([(words.directory, 1.0)], recipe, 1).batch(0, 512)
    chosen = rows.loss_mask > 0
    tokens, labels = rows.tokens[chosen], rows.labels[chosen]
    masked = tokens == recipe.known.specials.mask
    assert np.array_equal(tokens[~masked], labels[~masked])
    assert abs(masked.sum() - share * masked.size) <= 5 * np.sqrt(masked.size * share * (1 - share))


def test_whole_words_are_chosen_whole_and_fill_the_budget(words: Dataset) -> None:
    recipe, rows = batch_of(words, 512, whole_words=True)
    starts = recipe.known.starts_word
    assert 0 < (~starts[rows.labels]).mean() < 0.9
    inside = ~starts[rows.labels[:, 1:]] & ~recipe.known.is_special[rows.labels[:, :-1]]
    inside &= ~recipe.known.ends_sentence[rows.labels[:, :-1]]
    chosen = rows.loss_mask > 0
    assert np.array_equal(chosen[:, 1:][inside], chosen[:, :-1][inside])
    budget = np.array([round(0.15 * count) for count in (~recipe.known.is_special[rows.labels]).sum(axis=1)])
    assert ((chosen.sum(axis=1) <= budget) | (chosen.sum(axis=1) <= 12)).all()  # 12: the longest word
    assert chosen.sum() > 0.95 * budget.sum()
    if words.manifest.tokenizer.file == "tokenizer.model":  # a document's first word has no space before it
        over_end = (rows.labels[:, 1:-1] == recipe.known.specials.sep) & ~starts[rows.labels[:, 2:]]
        assert (chosen[:, :-2] != chosen[:, 2:])[over_end].any()
    _, plain = batch_of(words, 512)
    split = plain.loss_mask[:, 1:][inside] != plain.loss_mask[:, :-1][inside]
    assert split.any()


def test_words_are_masked_in_spans_whose_length_n_has_a_probability_as_1_by_n() -> None:
    """At so low a density that spans hardly touch."""
    ids = np.arange(3000)
    known = Vocabulary(
        specials=Specials(pad=-1, cls=-1, sep=-1, mask=0, start=-1, end=-1, sentinels=(), vocabulary=3000),
        tokenizer="", end_of_text=-1,
        is_special=ids == 0, starts_word=ids % 2 == 0, ends_sentence=ids < 0, ordinary=ids[1:],
    )  # fmt: skip
    masking, found = Masking(known=known, noise_density=0.02, whole_words=True, ngrams=3), np.zeros(4)
    row = np.arange(1000, 3000)  # words of two tokens
    for seed in range(400):
        _, counted = masking.masked(row, np.random.default_rng(seed))
        assert counted.sum() == 40
        assert np.array_equal(counted[::2], counted[1::2])
        edges = np.flatnonzero(np.diff(np.pad(counted[::2], 1)))
        for length in (edges[1::2] - edges[::2]).astype(int):
            if length <= 3:
                found[length] += 1
    share = found[1:] / found.sum()
    assert np.abs(share - np.array([6, 3, 2]) / 11).max() < 0.04, share  # the last span of a row is cut to the budget


def test_spans_of_words_do_not_reach_over_a_separator(words: Dataset) -> None:
    recipe, _ = batch_of(words, 8, whole_words=True, ngrams=3)
    specials = recipe.known.specials
    chunks = [np.array([40, 41, 42]), np.array([43, 44, 45])]
    row = np.concatenate([[specials.cls], chunks[0], [specials.sep], chunks[1], [specials.sep]])
    masking = Masking(known=recipe.known, noise_density=0.4, whole_words=True, ngrams=6)
    for seed in range(200):
        _, counted = masking.masked(row, np.random.default_rng(seed))
        assert not counted[recipe.known.is_special[row]].any()


def words_one_by_one(known: Vocabulary, labels: Ids, density: float, ngrams: int, random: np.random.Generator) -> Ids:
    """Positions that are masked, by the plain loops over words that runs on record were made with."""
    special = known.is_special[labels]
    positions = np.flatnonzero(~special)
    budget = min(len(positions), max(1, round(density * len(positions))))
    begins = known.starts_word[labels] | special
    begins[1:] |= special[:-1] | known.ends_sentence[labels[:-1]]
    begins[0] = True
    words, chosen = np.split(positions, np.flatnonzero(begins[positions])[1:]), list[Ids]()
    if ngrams == 1:
        for index in random.permutation(len(words)):
            if not chosen or sum(map(len, chosen)) + len(words[index]) <= budget:
                chosen.append(words[index])
            if sum(map(len, chosen)) >= budget:
                break
        return np.concatenate(chosen)
    weights = 1 / np.arange(1, ngrams + 1)
    lengths = random.choice(np.arange(1, ngrams + 1), len(words), p=weights / weights.sum())
    free, left = np.ones(len(words), bool), budget
    for first in random.permutation(len(words)):
        for index in range(first, min(first + int(lengths[first]), len(words))):
            word = words[index]
            apart = index > first and word[0] != words[index - 1][-1] + 1
            if not free[index] or apart or (chosen and len(word) > left):
                break
            free[index] = False
            left -= len(word)
            chosen.append(word)
        if left <= 0:
            break
    return np.concatenate(chosen)


@pytest.mark.parametrize("ngrams", [1, 3])
def test_words_are_drawn_as_ever(ngrams: int) -> None:
    """The same rows, and as many random numbers: samples of runs on record stay what they are."""
    source = np.random.default_rng(0)
    for seed in range(1500):
        ids = np.arange(200)
        known = Vocabulary(
            specials=Specials(pad=0, cls=1, sep=2, mask=3, start=-1, end=-1, sentinels=(), vocabulary=200),
            tokenizer="", end_of_text=-1,
            is_special=ids < 4, starts_word=source.random(200) < source.random(), ends_sentence=ids % 17 == 16,
            ordinary=ids[4:],
        )  # fmt: skip
        row = source.integers(source.integers(5), 200, source.integers(1, 300))
        row[source.integers(len(row))] = 50  # a row has some text
        density = source.choice([0.01, 0.15, 0.5, 0.95])
        one, other = np.random.default_rng(seed), np.random.default_rng(seed)
        tokens, counted = Masking(known=known, noise_density=density, whole_words=True, ngrams=ngrams).masked(row, one)
        chosen = words_one_by_one(known, row, density, ngrams, other)
        draw, instead, expected = other.random(len(chosen)), other.choice(known.ordinary, len(chosen)), row.copy()
        expected[chosen] = np.where(draw < 0.8, 3, np.where(draw < 0.9, instead, row[chosen]))
        assert np.array_equal(tokens, expected)
        assert np.array_equal(np.flatnonzero(counted), np.sort(chosen))
        assert one.random() == other.random()


def test_half_of_the_samples_have_their_segments_swapped(words: Dataset) -> None:
    recipe, rows = batch_of(words, 1000, sentence_order=True)
    _, asked_otherwise = batch_of(words, 1000, next_sentence=True)
    specials = recipe.known.specials
    assert rows.segments is not None
    assert rows.next_sentence is not None
    assert abs(rows.next_sentence.mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
    documents = [bytes(tokens.tobytes()) for _, tokens in words.documents("train")]
    recipe_rows = recipe.samples(words, "train")
    both = {True: set(), False: set()}
    for labels, follows in zip(rows.labels, rows.next_sentence, strict=True):
        middle, last = np.flatnonzero(labels == specials.sep)[:2]
        parts = [labels[1:middle], labels[middle + 1 : last]]
        assert min(map(len, parts)) > 0
        ordered = np.concatenate(parts if follows else parts[::-1])
        assert any(bytes(ordered.tobytes()) in document for document in documents)
    assert not np.array_equal(rows.tokens, asked_otherwise.tokens)
    for epoch in range(8):  # the same piece under either label
        made = recipe_rows.rows(0, np.array([[0, epoch, 0]]))
        text = np.sort(made.labels[made.attention_mask & ~recipe.known.is_special[made.labels]])
        both[bool(made.next_sentence[0])].add(bytes(text.tobytes()))
    assert both[True] & both[False]


def test_spans_of_swapped_segments_are_told_in_the_order_of_the_row(words: Dataset) -> None:
    recipe, _ = batch_of(words, 8, sentence_order=True)
    samples, ids = recipe.samples(words, "train"), np.array([[0, 0, number] for number in range(40)])
    rows, spans = samples.rows(3, ids), samples.token_spans(3, ids)
    for index, labels in enumerate(rows.labels):
        own = [words.window("train", int(start), int(count)) for row, start, count in spans if row == index]
        found = labels[~recipe.known.is_special[labels]]
        assert np.array_equal(np.concatenate(own), found)
    starts = spans[:, 1].reshape(-1, 2)
    assert np.array_equal(starts[:, 0] < starts[:, 1], rows.next_sentence == 1)


def test_the_mask_is_another_one_in_each_epoch(words: Dataset) -> None:
    recipe, _ = batch_of(words)
    samples = recipe.samples(words, "train")
    first, again, second = (samples.rows(0, np.array([[0, epoch, 3]])) for epoch in (0, 0, 1))
    assert np.array_equal(first.labels, second.labels)
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.loss_mask, second.loss_mask)


def test_half_of_the_second_segments_follow_and_the_others_come_from_elsewhere(words: Dataset) -> None:
    recipe, rows = batch_of(words, 1000, next_sentence=True)
    specials = recipe.known.specials
    assert rows.segments is not None
    assert rows.next_sentence is not None
    assert rows.attention_mask is not None
    documents = [bytes(tokens.tobytes()) for _, tokens in words.documents("train")]
    assert abs(rows.next_sentence.mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
    elsewhere = 0
    for labels, segments, visible, follows in zip(
        rows.labels, rows.segments, rows.attention_mask, rows.next_sentence, strict=True
    ):
        assert labels[0] == specials.cls
        middle, last = np.flatnonzero(labels == specials.sep)[:2]
        assert np.array_equal(np.flatnonzero(visible), np.arange(last + 1))
        assert np.array_equal(segments[: last + 1], (np.arange(last + 1) > middle))
        assert (labels[last + 1 :] == specials.pad).all()
        first, second = labels[1:middle], labels[middle + 1 : last]
        assert first.size
        assert second.size
        together = any(bytes(np.concatenate([first, second]).tobytes()) in document for document in documents)
        assert together or not follows
        elsewhere += not follows and not together
    assert elsewhere > 0.95 * (rows.next_sentence == 0).sum()  # a piece of a word may well follow by chance
    if words.manifest.tokenizer.file == "tokenizer.json":
        return
    cuts = [labels[np.flatnonzero(labels == specials.sep)[0] - 1] for labels in rows.labels]
    ends = [recipe.known.ends_sentence[labels[1:]].any() for labels in rows.labels]
    assert recipe.known.ends_sentence[cuts].sum() > 0.5 * sum(ends)


def test_another_document_is_never_the_same_one(tmp_path: Path) -> None:
    low, high = (" ".join(f"{word}{i % 7}." for i in range(900)) for word in ("aa", "bbb"))
    (tmp_path / "held.txt").write_text("held out")
    held = str(tmp_path / "held.txt")
    dataset = build_dataset([low, high], tmp_path, validation_input=held, tokenizer={"vocabulary": 280})
    recipe, rows = batch_of(dataset, 200, next_sentence=True)
    tokenizer, whole = dataset.tokenizer(), []
    for labels, segments, follows in zip(rows.labels, rows.segments, rows.next_sentence, strict=True):
        texts = [labels[(segments == number) & ~recipe.known.is_special[labels]] for number in (0, 1)]
        letters = [{"a", "b"} & set(tokenizer.decode(text)) for text in texts]
        if all(letters):  # some are a number only
            assert (letters[0] == letters[1]) == follows
        if not follows:
            whole.append(tokenizer.decode(texts[1]).strip().startswith(("aa", "bbb")))
    assert np.mean(whole) > 0.95  # begin where a sentence does, but near a document's end


def test_short_fraction_cuts_samples_and_otherwise_pieces_are_whole(words: Dataset) -> None:
    def sizes(fraction: float) -> np.ndarray:
        recipe, _ = batch_of(words, 8, next_sentence=True, short_fraction=fraction)
        samples = recipe.samples(words, "train")
        rows = samples.rows(0, np.array([[0, 0, number] for number in range(samples.count)]))
        assert rows.attention_mask is not None
        return np.where(rows.next_sentence == 1, rows.attention_mask.sum(axis=1), 0)

    whole, some, all_short = sizes(0.0), sizes(0.2), sizes(1.0)
    lengths = np.array([len(tokens) for _, tokens in words.documents("train")])
    size = LENGTH - 3
    pieces = [min(size, length - start) for length in lengths for start in range(0, length, size)]
    pieces = np.array([piece for piece in pieces if piece > 1])
    assert len(whole) == len(pieces)
    assert np.array_equal(whole[whole > 0], pieces[whole > 0] + 3)
    changed = [(found[found > 0] < pieces[found > 0] + 3).mean() for found in (some, all_short)]
    assert 0.1 < changed[0] < 0.3
    assert changed[1] > 0.9


def test_one_document_is_enough_to_ask_for_the_order(tmp_path: Path) -> None:
    text = " ".join(make_documents(0, 50)).replace("\n", " ")
    dataset = build_dataset([text, "one more"], tmp_path, validation_fraction=1e-9)
    recipe = OBJECTIVES["masked"](sentence_order=True).recipe(dataset.tokenizer(), LENGTH)
    assert max(recipe.samples(dataset, split).count for split in ("train", "validation")) > 0


def test_a_split_of_one_document_has_no_next_sentence_from_another(tmp_path: Path) -> None:
    text = " ".join(make_documents(0, 50)).replace("\n", " ")
    dataset = build_dataset([text, "one more"], tmp_path, validation_fraction=1e-9)
    recipe = OBJECTIVES["masked"](next_sentence=True).recipe(dataset.tokenizer(), LENGTH)
    with pytest.raises(DataError, match="too few documents"):
        recipe.samples(dataset, "train")
    recipe = OBJECTIVES["masked"]().recipe(dataset.tokenizer(), LENGTH)
    assert {recipe.samples(dataset, "train").count} - {0}


def test_held_out_text_may_be_masked_by_another_density(dataset: Dataset) -> None:
    shares = {}
    for held_out in (None, 0.15):
        recipe = Masked(noise_density=0.4, heldout_noise_density=held_out).recipe(dataset.tokenizer(), 64)
        for split in ("train", "validation"):
            samples = recipe.samples(dataset, split)
            ids = np.array([[0, 0, number] for number in range(min(20, samples.count))])
            shares[held_out, split] = samples.rows(0, ids).loss_mask.mean()
    assert shares[None, "validation"] == pytest.approx(shares[None, "train"], rel=0.1)
    assert shares[0.15, "train"] == shares[None, "train"]
    assert shares[0.15, "validation"] / shares[None, "validation"] == pytest.approx(0.15 / 0.4, rel=0.1)
