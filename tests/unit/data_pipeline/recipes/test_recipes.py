"""What every recipe promises: samples that depend on nothing but their own number, in rows of one shape."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.batch import Cursor, Rows
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.heldout import heldout
from data_pipeline.loader import SampleStream, load
from data_pipeline.recipes.backward import BackwardSamples
from data_pipeline.recipes.base import Recipe, generator
from data_pipeline.recipes.best_fit import BestFitRecipe
from data_pipeline.recipes.causal import CausalRecipe
from data_pipeline.recipes.corruption import CorruptedWindows
from data_pipeline.recipes.denoising import Denoising
from data_pipeline.recipes.objective import Objective
from data_pipeline.recipes.registry import OBJECTIVES
from data_pipeline.recipes.span_corruption import SpanCorruption
from data_pipeline.recipes.targets import RowShape
from tests.helpers.datasets import build_dataset, build_pairs, make_documents

LENGTH = 48
CASES: dict[str, dict[str, Any]] = {
    "causal": {"name": "causal"},
    "packed": {"name": "causal", "packing": "best_fit"},
    "document windows": {"name": "causal", "document_mask": True},
    "backward": {"name": "causal", "direction": "backward"},
    "control": {"name": "control", "codes": {"set": "a code"}},
    "roberta": {"name": "masked"},
    "whole words": {"name": "masked", "whole_words": True},
    "bert": {"name": "masked", "next_sentence": True},
    "electra": {"name": "replaced_tokens"},
    "xlnet": {"name": "permuted"},
    "albert": {"name": "masked", "sentence_order": True, "whole_words": True, "ngrams": 3},
    **{name: {"name": name} for name in ("span_corruption", "bert_style", "mass_style", "drop", "prefix_lm")},
    "deshuffling": {"name": "deshuffling"},
    "bart": {"name": "denoising", "noise_density": 0.3},
    "all noise": {
        "name": "denoising",
        "noise": ["token_masking", "token_deletion", "text_infilling", "sentence_permutation", "document_rotation"],
    },
    "pairs": {"name": "pairs"},
    "tlm": {"name": "tlm"},
}
OF_PAIRS = ("pairs", "tlm")
OTHERS = (
    "causal",
    "packed",
    "document windows",
    "backward",
    "control",
    "roberta",
    "whole words",
    "bert",
    "electra",
    "xlnet",
    "albert",
    "tlm",
)
TO_TARGET = [name for name in CASES if name not in OTHERS]
FIELDS = [field.name for field in dataclasses.fields(Rows)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return build_pairs(
        [(f"der Satz {i} ist lang", f"sentence {i}") for i in range(80)], tmp_path_factory.mktemp("pairs")
    )


@pytest.fixture(params=list(CASES))
def stream(request: pytest.FixtureRequest, dataset: Dataset, second: Dataset, pairs: Dataset) -> SampleStream:
    objective = made_of(CASES[request.param])
    sources = [(pairs, 1.0)] if objective.name in OF_PAIRS else [(dataset, 3.0), (second, 1.0)]
    recipe = objective.recipe(sources[0][0].tokenizer(), LENGTH)
    return SampleStream([(source.directory, weight) for source, weight in sources], recipe, seed=5)


def made_of(settings: dict[str, Any]) -> Objective:
    return OBJECTIVES[settings["name"]](**settings)


def made(name: str, dataset: Dataset, length: int = LENGTH, **changes: Any) -> Recipe:
    arguments = {key: changes.pop(key) for key in ("target_length", "decoder_only") if key in changes}
    return made_of(CASES[name] | changes).recipe(dataset.tokenizer(), length, **arguments)


def same(one: Rows, other: Rows) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


def test_a_sample_is_the_same_in_any_batch_on_any_rank_and_thread(stream: SampleStream) -> None:
    whole = stream.batch(100, 24)
    assert same(whole, stream.batch(100, 24))
    for size, world in ((1, 1), (3, 1), (8, 4), (24, 8)):
        batches = [stream.batch(start, size, rank, world) for start in range(100, 124, size) for rank in range(world)]
        for name in FIELDS:
            expected, parts = getattr(whole, name), [getattr(batch, name) for batch in batches]
            assert np.array_equal(np.concatenate(parts), expected) if expected is not None else parts[0] is None


def test_a_run_resumed_on_other_ranks_goes_on_as_an_unbroken_one(stream: SampleStream) -> None:
    expected = list(islice(load(stream, stream.cursor(0), lambda _: 8, workers=0), 12))
    cursor, turn = stream.cursor(0), 0
    for world, steps in ((1, 3), (4, 2), (2, 5), (8, 2)):
        ranks = [
            load(stream, cursor, lambda _: 8, data_rank=rank, data_world=world, workers=rank % 3)
            for rank in range(world)
        ]
        for _ in range(steps):
            batches = [next(rank) for rank in ranks]
            tokens = np.concatenate([batch.tokens for batch in batches])
            assert np.array_equal(tokens, expected[turn].tokens)
            assert np.array_equal(np.concatenate([b.labels for b in batches]), expected[turn].labels)
            assert batches[0].data_hash == expected[turn].data_hash
            cursor, turn = Cursor.from_dict(batches[0].cursor.to_dict()), turn + 1


def test_rows_have_one_shape_and_ids_of_the_vocabulary(stream: SampleStream) -> None:
    recipe, batch = stream.recipe, stream.batch(0, 64)
    assert batch.tokens.shape == (64, recipe.sequence_length) == (64, LENGTH)
    assert batch.labels.shape == batch.loss_mask.shape == (64, recipe.target_length)
    for ids in (batch.tokens, batch.labels, batch.decoder_tokens):
        if ids is not None:
            assert ids.dtype == np.int64
            assert ids.min() >= 0
            assert ids.max() < recipe.vocabulary
    assert batch.loss_mask.dtype == np.float32
    assert (batch.loss_mask.sum(axis=1) >= 1).all()
    assert batch.attention_mask is None or (batch.attention_mask.dtype, batch.attention_mask.shape) == (
        np.bool_,
        batch.tokens.shape,
    )


def test_a_sample_changes_with_seed_source_epoch_and_number() -> None:
    draws = {generator(seed, np.array(ids)).integers(2**62) for seed, ids in [
        (0, [0, 0, 0]), (1, [0, 0, 0]), (0, [1, 0, 0]), (0, [0, 1, 0]), (0, [0, 0, 1]), (0, [0, 1, 1]), (11, [0, 0, 0]),
    ]}  # fmt: skip
    assert len(draws) == 7
    assert generator(3, np.array([1, 2, 3])).integers(2**62) == 3507237246619380945  # what checkpoints rely on


def test_the_causal_order_is_that_of_checkpoints_before_there_were_recipes(dataset: Dataset) -> None:
    from data_pipeline.common.hashing import digest_of

    stream = SampleStream([(dataset.directory, 2.0)], LENGTH, 7)
    assert stream.fingerprint == digest_of([1, [dataset.identity], [2.0], 7, LENGTH, "train"])
    assert SampleStream([(dataset.directory, 2.0)], CausalRecipe(LENGTH, 400), 7).fingerprint == stream.fingerprint


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("causal", {}),
        ("packed", {"packing": "best_fit"}),
        ("roberta", {"name": "masked"}),
        ("bert", {"name": "masked", "next_sentence": True}),
        ("prefix_lm", {"name": "prefix_lm"}),
        ("bart", {"name": "denoising", "noise_density": 0.3}),
    ],
)
def test_what_tells_orders_apart_is_what_it_is_in_checkpoints_of_version_0_1_0(
    name: str, settings: dict[str, Any]
) -> None:
    assert made_of(CASES[name]).settings() == settings
    assert made_of(CASES[name] | {"label_smoothing": 0.5, "z_loss": 1e-4}).settings() == settings


def test_every_setting_of_a_recipe_makes_another_order(dataset: Dataset) -> None:
    recipes = [
        made("roberta", dataset), made("whole words", dataset), made("bert", dataset), made("causal", dataset),
        made("albert", dataset), made("albert", dataset, ngrams=2),
        made("packed", dataset),
        made("roberta", dataset, noise_density=0.2), made("drop", dataset), made("prefix_lm", dataset),
        made("drop", dataset, decoder_only=True), made("drop", dataset, target_length=LENGTH),
        made("span_corruption", dataset), made("span_corruption", dataset, mean_span=4),
        made("span_corruption", dataset, sentinels=50), made("bart", dataset), made("all noise", dataset),
    ]  # fmt: skip
    prints = {SampleStream([(dataset.directory, 1.0)], recipe, 0).fingerprint for recipe in recipes}
    assert len(prints) == len(recipes)
    assert SampleStream([(dataset.directory, 1.0)], made("bert", dataset), 0).fingerprint in prints


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", [name for name in CASES if name != "causal"])
def test_heldout_samples_come_once_in_order_and_fillers_do_not_count(
    dataset: Dataset, pairs: Dataset, name: str, world: int
) -> None:
    source = pairs if name in OF_PAIRS else dataset
    recipe = made(name, source, 24)
    samples = recipe.samples(source, "validation")
    count = min(samples.count, 7)
    ids = np.array([[0, 0, number] for number in range(count)])
    expected = samples.rows(0, ids)
    ranks = [list(heldout(source, recipe, 4, data_rank=rank, data_world=world, limit=7)) for rank in range(world)]
    rows = [batch for turn in zip(*ranks, strict=True) for batch in turn]
    numbers = np.concatenate([batch.sample_ids[:, 2] for batch in ranks[0]])
    assert numbers.tolist() == [*range(count), *[-1] * (-count % 4)]
    for field in FIELDS:
        if getattr(expected, field) is not None:
            found = np.concatenate([getattr(batch, field) for batch in rows])
            assert np.array_equal(found[:count], getattr(expected, field))
    assert sum(batch.loss_mask.sum() for batch in rows) == expected.loss_mask.sum()
    if expected.next_sentence is not None:
        assert (np.concatenate([batch.next_sentence for batch in rows])[count:] == -1).all()
    assert ranks[0][-1].cursor.samples == count


def test_t5_s_lengths() -> None:
    """text-to-text-transfer-transformer's random_spans_helper: 568 tokens of text and a target of 114 for 512."""
    t5 = SpanCorruption()
    assert (t5.text_tokens(512), t5.target_length(512)) == (568, 114)
    assert t5.span_counts(568) == (85, 28)
    byt5 = SpanCorruption(mean_span=20)
    assert byt5.target_length(1024) == 189
    for length in range(8, 700):
        assert t5.lengths(t5.text_tokens(length))[0] == length
        assert sum(t5.lengths(t5.text_tokens(length, True))) <= length


@pytest.mark.parametrize("density", [0.995, 0.999999, 1 - 1e-12])
def test_noise_that_takes_the_text_of_a_hundred_rows_is_refused_at_once(density: float) -> None:
    with pytest.raises(DataError, match=r"noise_density=0\.99\S* leaves so little .* more than 51,200 tokens"):
        SpanCorruption(noise_density=density, mean_span=1e6).text_tokens(512)
    with pytest.raises(ValidationError):
        Denoising(mean_span=1e19)  # numpy draws no such numbers


@pytest.mark.parametrize(("density", "span"), [(0.15, 3), (0.5, 1), (0.98, 3), (0.985, 1e6)])
@pytest.mark.parametrize("decoder_only", [False, True])
def test_a_sample_takes_the_most_text_that_fits(density: float, span: float, decoder_only: bool) -> None:
    t5 = SpanCorruption(noise_density=density, mean_span=span)
    for length in (8, 30, 61):
        text = t5.text_tokens(length, decoder_only)
        fits = [sum(t5.lengths(tokens)[: 1 + decoder_only]) <= length for tokens in range(2, 100 * length)]
        assert fits == [tokens <= text for tokens in range(2, 100 * length)]


def test_lengths_of_the_other_objectives() -> None:
    for name in ("causal", "masked", "bert_style", "mass_style", "deshuffling", "prefix_lm", "denoising", "pairs"):
        assert OBJECTIVES[name]().target_length(512) == 512
    assert OBJECTIVES["drop"]().target_length(512) == 127  # 511 * .15 + 6 * sqrt(511 * .15 * .85), and the end
    with pytest.raises(DataError, match="too few for a sample of denoising"):
        OBJECTIVES["denoising"]().text_tokens(3)


@pytest.mark.parametrize("name", TO_TARGET)
def test_a_decoder_alone_reads_input_and_shifted_target_as_one(dataset: Dataset, pairs: Dataset, name: str) -> None:
    source = pairs if name in OF_PAIRS else dataset
    recipe = made(name, source, decoder_only=True)
    assert recipe.target_length == LENGTH
    batch = SampleStream([(source.directory, 1.0)], recipe, 0).batch(0, 32)
    assert batch.tokens.shape == batch.labels.shape == (32, LENGTH)
    assert batch.decoder_tokens is None
    start, end = recipe.shape.start, recipe.known.specials.end  # type: ignore[attr-defined]
    for tokens, labels, mask, visible in zip(
        batch.tokens, batch.labels, batch.loss_mask, batch.attention_mask, strict=True
    ):
        first, count = int(visible.sum()), int(mask.sum())
        assert visible[:first].all()
        assert mask[first : first + count].all()
        assert tokens[first - 1] == end
        assert tokens[first] == start
        assert labels[first + count - 1] == end
        assert np.array_equal(labels[:-1], tokens[1:])


def test_a_decoder_alone_gets_the_samples_that_an_encoder_and_decoder_get() -> None:
    samples = [(np.array([5, 6, 1]), np.array([7, 1])), (np.array([8, 1]), np.array([9, 10, 1]))]
    both = RowShape(sequence_length=4, target_length=3, pad=0, start=2).rows(samples)
    assert both.tokens.tolist() == [[5, 6, 1, 0], [8, 1, 0, 0]]
    assert both.attention_mask is not None
    assert both.attention_mask.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert both.labels.tolist() == [[7, 1, 0], [9, 10, 1]]
    assert both.decoder_tokens is not None
    assert both.decoder_tokens.tolist() == [[2, 7, 1], [2, 9, 10]]
    assert both.loss_mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    alone = RowShape(sequence_length=6, target_length=6, pad=0, start=2, decoder_only=True).rows(samples)
    assert alone.tokens.tolist() == [[5, 6, 1, 2, 7, 1], [8, 1, 2, 9, 10, 1]]
    assert alone.labels.tolist() == [[6, 1, 2, 7, 1, 0], [1, 2, 9, 10, 1, 0]]
    assert alone.loss_mask.tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0]]
    assert alone.attention_mask is not None
    assert alone.attention_mask.sum(axis=1).tolist() == [3, 2]


def test_what_cannot_be_made_is_refused(dataset: Dataset, pairs: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="target of 20 positions is too short"):
        made("bert_style", dataset, target_length=20)
    with pytest.raises(DataError, match=r"sentinels=2 are too few .* set objective\.sentinels=\d+"):
        made("span_corruption", dataset, sentinels=2)
    with pytest.raises(DataError, match="too few for one sample of 100,000"):
        made("mass_style", dataset, 100_001).samples(dataset, "train")
    for name, wrong in (("pairs", dataset), ("bert", pairs), ("causal", pairs), ("bart", pairs)):
        with pytest.raises(DataError, match="no pairs" if wrong is dataset else "use objective.name=pairs or tlm"):
            SampleStream([(wrong.directory, 1.0)], made(name, wrong), 0)
    other = build_dataset(make_documents(7, 60), tmp_path)
    with pytest.raises(DataError, match="made with another tokenizer"):
        SampleStream([(other.directory, 1.0)], made("roberta", dataset), 0)


def _read(stream: SampleStream, source: int, start: int, count: int) -> list[int]:
    tokens = stream.datasets[source].window("train", start, count).tolist()
    return tokens[::-1] if isinstance(stream.samples[source], BackwardSamples) else tokens


def test_the_spans_of_a_row_are_its_text(stream: SampleStream) -> None:
    batch = stream.batch(90, 40)
    for source, samples in enumerate(stream.samples):
        rows = np.flatnonzero(batch.sample_ids[:, 0] == source)
        spans = samples.token_spans(5, batch.sample_ids[rows])
        assert np.array_equal(np.unique(spans[:, 0]), np.arange(len(rows)))
        assert np.array_equal(spans[:, 0], np.sort(spans[:, 0]))
        for at, row in enumerate(rows):
            mine = spans[spans[:, 0] == at]
            text = [token for _, start, n in mine for token in _read(stream, source, start, n)]
            shown = shown_text(stream, batch[np.array([row])])
            ordered = objective_of(stream) not in ("span_corruption", "drop")
            assert shown == text if ordered else sorted(shown) == sorted(text)


@pytest.fixture(scope="module")
def long_pairs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Pairs of which each text has 50 tokens or more."""
    texts = [(f"der Satz {i} " + "ist lang " * 30, f"the sentence {i} " + "is long " * 30) for i in range(40)]
    return build_pairs(texts, tmp_path_factory.mktemp("long_pairs"))


@pytest.mark.parametrize("decoder_only", [False, True])
@pytest.mark.parametrize("length", [24, 48, 192])
@pytest.mark.parametrize("name", [*TO_TARGET, "tlm"])
def test_a_row_shows_all_of_its_text_at_any_length(
    dataset: Dataset, pairs: Dataset, long_pairs: Dataset, name: str, length: int, decoder_only: bool
) -> None:
    source = (long_pairs if length == 192 else pairs) if name in OF_PAIRS else dataset
    stream = SampleStream([(source.directory, 1.0)], made(name, source, length, decoder_only=decoder_only), 3)
    samples, batch = stream.samples[0], stream.batch(0, 8)
    spans = samples.token_spans(3, batch.sample_ids)
    for at in range(8):
        text = [token for _, start, n in spans[spans[:, 0] == at] for token in source.window("train", start, n)]
        if name in OF_PAIRS and length == 192:
            assert len(text) >= 100
        shown = shown_text(stream, batch[np.array([at])])
        ordered = objective_of(stream) not in ("span_corruption", "drop")
        assert shown == text if ordered else sorted(shown) == sorted(text)
        if isinstance(samples, CorruptedWindows):
            inputs, target = samples.recipe.objective.corrupt(
                np.array(text), generator(3, batch.sample_ids[at]), samples.recipe
            )
            assert batch.attention_mask is None or batch.tokens[at][batch.attention_mask[at]].tolist() == list(inputs)
            assert batch.labels[at][batch.loss_mask[at] == 1].tolist() == list(target)
            assert samples.recipe.known.specials.sentinels[:1] in ((), (target[0],))


def objective_of(stream: SampleStream) -> str:
    settings = stream.recipe.settings or {}
    return str(settings.get("objective", settings).get("name", "causal"))


def shown_text(stream: SampleStream, row: Rows) -> list[int]:
    """The tokens of text that a sample's input and labels show, without what its objective adds."""
    tokens = row.tokens[row.attention_mask] if row.attention_mask is not None else row.tokens[0]
    labels = row.labels[row.loss_mask == 1]
    known = stream.datasets[0].manifest.tokenizer
    name = objective_of(stream)
    if isinstance(stream.recipe, BestFitRecipe):
        mine = [row.documents == number for number in range(row.documents.max() + 1)]
        return [token for own in mine for token in [*row.tokens[own].tolist(), int(row.labels[own][-1])]]
    if name == "control":
        return labels.tolist()
    if name == "causal":
        return [*row.tokens[0].tolist(), int(row.labels[0, -1])]
    if name in ("masked", "tlm") and row.segments is not None:
        labels = row.labels[row.attention_mask]
        return labels[labels < known.vocabulary].tolist()
    if name in ("masked", "replaced_tokens"):
        text = row.labels[0, 1:-1]
        return np.where(text < known.vocabulary, text, known.end_of_text).tolist()
    if name == "permuted":
        return [token for token in row.tokens[row.order % 2 == 0].tolist() if token < known.vocabulary]
    if name == "pairs":
        return [*tokens.tolist(), *labels.tolist()]
    if name == "denoising":
        return labels[1:-1].tolist()
    whole = labels[:-1] if name in ("bert_style", "mass_style", "deshuffling") else [*tokens[:-1], *labels[:-1]]
    return [int(token) for token in whole if token < known.vocabulary]
