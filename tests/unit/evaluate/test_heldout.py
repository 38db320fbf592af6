"""Held-out loss: every token once, the same on any number of data ranks, ratios from whole splits only."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from data_pipeline.batch import Batch
from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.heldout import heldout, num_heldout, text_labels
from data_pipeline.recipes.masked import Masked
from data_pipeline.recipes.span_corruption import SpanCorruption
from pretrain.engine.base import Scores
from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.heldout import HeldOut, count_text, heldout_loss, unigram_entropy
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from tests.helpers.datasets import Silent, make_documents, settings
from tests.unit.evaluate.fakes import FakeEngine, on_ranks


class Scoring:
    """An engine of one rank that gives every label a loss of 2 nats."""

    data_rank, data_world = 0, 1

    def score(self, batch: Batch) -> Scores:
        return Scores(np.full(batch.labels.shape, -2.0), np.zeros(batch.labels.shape, np.bool_))

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        return values


def stream(dataset: Dataset) -> np.ndarray:
    return dataset.window("validation", 0, dataset.num_tokens("validation"))


def test_every_token_but_the_first_is_predicted_once_after_what_precedes_it(
    dataset: Dataset, model: GPT2LMHeadModel
) -> None:
    length, tokens = 48, stream(dataset)
    expected = 0.0
    for start in range(0, len(tokens) - 1, length):
        window = torch.from_numpy(tokens[start : start + length + 1])
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        expected += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    scored = heldout_loss(FakeEngine(model), dataset, length, rank_rows=3)
    assert scored.token_count == len(tokens) - 1
    assert scored.loss_sum == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sequences", [None, 5])
def test_loss_does_not_depend_on_data_ranks_or_rows(
    dataset: Dataset, model: GPT2LMHeadModel, sequences: int | None
) -> None:
    alone = heldout_loss(FakeEngine(model), dataset, 32, sequences, rank_rows=4)
    for world, rows in [(1, 7), (2, 4), (3, 1)]:
        for scored in on_ranks(model, world, lambda e, rows=rows: heldout_loss(e, dataset, 32, sequences, rows)):
            assert (scored.token_count, scored.words) == (alone.token_count, alone.words)
            assert scored.loss_sum == pytest.approx(alone.loss_sum, rel=1e-6)


def test_ranks_score_batches_of_one_shape_and_as_many(dataset: Dataset, model: GPT2LMHeadModel) -> None:
    def shapes(engine: FakeEngine) -> list[tuple[int, ...]]:
        heldout_loss(engine, dataset, 32, 5, rank_rows=2)
        return [tokens.shape for tokens, _ in engine.scored]

    assert on_ranks(model, 2, shapes) == [[(2, 32)] * 2] * 2


def test_a_part_of_the_split_has_no_words_and_bytes_by_itself(dataset: Dataset, engine: FakeEngine) -> None:
    scored = heldout_loss(engine, dataset, 32, sequences=3)
    assert scored.token_count == 96
    assert scored.word_perplexity is scored.byte_perplexity is scored.bits_per_byte is None


def test_the_text_of_a_part_is_counted_from_its_tokens(dataset: Dataset, engine: FakeEngine) -> None:
    tokenizer = dataset.tokenizer()
    tokens = [token for _, document in dataset.documents("validation") for token in (*document, tokenizer.end_of_text)]
    counted = count_text(heldout_loss(engine, dataset, 32, sequences=3), [dataset], tokenizer)
    assert counted.token_count == 96
    assert counted.text_bytes == sum(len(tokenizer.decode([t])) for t in tokens[1:97] if t != tokenizer.end_of_text)
    joined = "".join(tokenizer.decode([t]) if t != tokenizer.end_of_text else "\n" for t in tokens[1:97])
    assert counted.words == len(joined.split())


def test_counting_the_text_of_a_whole_split_adds_its_characters(dataset: Dataset, engine: FakeEngine) -> None:
    texts = [dataset.tokenizer().decode(tokens) for _, tokens in dataset.documents("validation")]
    scored = heldout_loss(engine, dataset, 32)
    assert count_text(scored, [dataset], dataset.tokenizer()) == replace(
        scored, characters=sum(map(len, texts)), unspaced_share=0.0
    )


def test_the_whole_split_has_the_words_and_bytes_of_its_text(dataset: Dataset, engine: FakeEngine) -> None:
    texts = [dataset.tokenizer().decode(tokens) for _, tokens in dataset.documents("validation")]
    scored = heldout_loss(engine, dataset, 32)
    assert scored.words == sum(len(text.split()) for text in texts)
    assert scored.text_bytes == sum(len(text.encode()) for text in texts)


def test_perplexities_divide_one_loss_by_tokens_words_and_bytes() -> None:
    scored = HeldOut(loss_sum=12.0, token_count=4, words=3, text_bytes=24, characters=8)
    assert scored.loss == 3
    assert scored.perplexity == pytest.approx(math.exp(3))
    assert scored.word_perplexity == pytest.approx(math.exp(4))
    assert scored.byte_perplexity == pytest.approx(math.exp(0.5))
    assert scored.bits_per_byte == pytest.approx(0.5 / math.log(2))
    assert scored.character_perplexity == pytest.approx(math.exp(1.5))
    assert scored.bits_per_character == pytest.approx(1.5 / math.log(2))


def test_a_perplexity_beyond_floats_is_absent() -> None:
    assert HeldOut(loss_sum=8e3, token_count=1000, words=2, text_bytes=4000).word_perplexity is None


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Two sources of one tokenizer, of which the first has about five times the text."""
    folder = tmp_path_factory.mktemp("mix")
    sources = []
    for name, seed, count in (("web", 1, 250), ("books", 2, 50)):
        (folder / f"{name}.txt").write_text("\n\n".join(make_documents(seed, count)))
        sources.append({"name": name, "input": str(folder / f"{name}.txt")})
    values = settings(input="unused", output=folder / "mix", validation_fraction=0.2).model_dump(exclude={"input"})
    assert build(BuildConfig.model_validate(values | {"sources": sources}), Silent)
    return [Dataset(folder / "mix" / name) for name in ("web", "books")]


def test_the_loss_of_a_mix_is_the_mean_over_the_held_out_tokens_of_all_sources(
    mix: list[Dataset], model: GPT2LMHeadModel
) -> None:
    alone = [heldout_loss(FakeEngine(model), dataset, 32) for dataset in mix]
    for world in (1, 2):
        for scored in on_ranks(model, world, lambda engine: heldout_loss(engine, mix, 32, rank_rows=3)):
            assert scored.token_count == sum(one.token_count for one in alone)
            assert scored.loss_sum == pytest.approx(sum(one.loss_sum for one in alone), rel=1e-6)
            assert scored.loss == pytest.approx(scored.loss_sum / scored.token_count)
            assert scored.loss != pytest.approx(np.mean([one.loss for one in alone]), rel=1e-6), (
                "sources differ in size"
            )
            assert scored.words == sum(one.words or 0 for one in alone)
            assert [count for _, count in scored.by_source] == [one.token_count for one in alone]
            assert [loss for loss, _ in scored.by_source] == pytest.approx([one.loss_sum for one in alone], rel=1e-6)


def test_a_part_of_a_mix_has_samples_of_each_source_by_what_it_has(mix: list[Dataset], engine: FakeEngine) -> None:
    counts = [-(-(dataset.num_tokens("validation") - 1) // 32) for dataset in mix]
    assert counts[0] > 2 * counts[1] > 4
    half = heldout_loss(engine, mix, 32, sequences=sum(counts) // 2)
    found = [count / 32 for _, count in half.by_source]
    assert found == [sum(counts) // 2 * count // sum(counts) for count in counts], "no more than was asked for"
    assert [count for _, count in heldout_loss(engine, mix, 32, sequences=1).by_source] == [32, 32], "one of each"
    tokenizer, texts = mix[0].tokenizer(), []
    for dataset, (_, count) in zip(mix, half.by_source, strict=True):
        tokens = dataset.window("validation", 1, count)
        texts += [tokenizer.decode(one) for one in np.split(tokens, np.flatnonzero(tokens == tokenizer.end_of_text))]
    counted = count_text(half, mix, tokenizer)
    assert counted.text_bytes == sum(len(text.encode()) for text in texts)


def test_bits_per_byte_of_each_source_are_of_its_own_text(mix: list[Dataset], engine: FakeEngine) -> None:
    for sequences in (None, sum(num_heldout(dataset, 32) for dataset in mix) // 2):
        scored = heldout_loss(engine, mix, 32, sequences)
        exact = count_text(scored, mix, mix[0].tokenizer())
        for dataset, (loss, count), near, bits in zip(
            mix, scored.by_source, scored.bits_per_byte_by_source, exact.bits_per_byte_by_source, strict=True
        ):
            tokenizer, tokens = dataset.tokenizer(), dataset.window("validation", 1, count)
            text = tokenizer.decode(tokens[tokens != tokenizer.end_of_text])
            assert bits == pytest.approx(loss / math.log(2) / len(text.encode()), rel=1e-2), (
                "white space is at ends alone"
            )
            assert near == pytest.approx(bits, rel=1e-9 if sequences is None else 0.2)
    assert exact.bits_per_byte_by_source != scored.bits_per_byte_by_source


def test_an_evaluation_has_the_figures_of_each_source(mix: list[Dataset], engine: FakeEngine) -> None:
    scorer = CausalScorer(engine, mix[0].tokenizer(), 32)
    settings = EvalSettings(shots=None, held_out=mix, window=32)
    found = evaluate(engine, scorer, mix[0], ["heldout"], settings).results["heldout"]["0"]
    assert list(found["sources"]) == ["web", "books"]
    for dataset in mix:
        alone, of = heldout_loss(engine, dataset, 32), found["sources"][dataset.name]
        assert (of["loss"], of["token_count"]) == (pytest.approx(alone.loss), alone.token_count)
        assert of["bits_per_byte"] == pytest.approx(alone.bits_per_byte)
    settings = EvalSettings(shots=None, held_out=mix[:1], window=32)
    assert "sources" not in evaluate(engine, scorer, mix[0], ["heldout"], settings).results["heldout"]["0"]


@pytest.mark.parametrize("objective", [Masked(), SpanCorruption()])
def test_bytes_of_what_an_objective_predicts_are_those_of_its_text(
    mix: list[Dataset], engine: FakeEngine, objective: Masked | SpanCorruption
) -> None:
    """Labels that are ends and sentinels have a loss, and no bytes."""
    tokenizer = mix[0].tokenizer()
    recipe = objective.recipe(tokenizer, 32)
    for dataset in mix:
        is_text, samples = text_labels(dataset, recipe), list(heldout(dataset, recipe, 4))
        assert is_text is not None
        labels = np.concatenate([batch.labels[batch.loss_mask > 0] for batch in samples])
        split = dataset.manifest.splits["validation"]
        per_token = split.text_bytes / sum(len(tokens) for _, tokens in dataset.documents("validation"))
        ordinary = [label for label in labels if label < tokenizer.vocabulary_size and label != tokenizer.end_of_text]
        assert len(ordinary) < len(labels) or isinstance(objective, Masked)
        scored = heldout_loss(Scoring(), dataset, recipe)  # type: ignore[arg-type]
        assert scored.bytes_by_source == [pytest.approx(per_token * len(ordinary))]
        assert scored.bits_per_byte_by_source == [
            pytest.approx(2 * len(labels) / math.log(2) / scored.bytes_by_source[0])
        ]


def test_the_entropy_is_of_the_held_out_tokens_of_all_sources(mix: list[Dataset]) -> None:
    tokens = np.concatenate([stream(dataset) for dataset in mix])
    share = np.unique(tokens, return_counts=True)[1] / len(tokens)
    assert unigram_entropy(mix) == pytest.approx(-(share * np.log(share)).sum())
