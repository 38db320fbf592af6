"""Samples of inputs and targets that are both text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.text_to_text import TextToText, TextToTextRecipe, TextToTextSamples
from tests.helpers.datasets import make_documents
from tests.unit.data_pipeline.labelled.conftest import Write


def _rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    texts = make_documents(seed, 2 * count)
    return [{"input": a, "target": b} for a, b in zip(texts[::2], texts[1::2], strict=True)]


def _recipe(dataset: LabelledDataset, name: str, *lengths: int, alone: bool = False, **more: Any) -> TextToTextRecipe:
    recipe = TextToText(format=name, **more).recipe(  # type: ignore[arg-type]
        dataset.tokenizer(), *lengths, decoder_only=alone
    )
    assert isinstance(recipe, TextToTextRecipe)
    return recipe


def _ids(count: int) -> np.ndarray:
    return np.stack([np.zeros(count), np.zeros(count), np.arange(count)], axis=1).astype(np.int64)


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "unigram", "bytes"])
def test_an_encoder_decoder_reads_the_input_and_writes_the_target(write: Write, name: str, kind: str) -> None:
    rows = _rows(8)
    dataset = write(rows, kind=kind)
    tokenizer = dataset.tokenizer()
    recipe = _recipe(dataset, name, 90, 70, prefix="sum: ")
    made, ids = recipe.samples(dataset, "train").rows(0, _ids(8)), recipe.inputs.specials
    begin = [ids.cls] if name == "bart" else []
    cut = 0
    for n, row in enumerate(rows):
        free = (89 - len(begin), 69 - len(begin))
        source = [*begin, *tokenizer.encode(f"sum: {row['input']}")[: free[0]], ids.end]
        target = [*begin, *tokenizer.encode(row["target"])[: free[1]], ids.end]
        cut += len(source) == 90 or len(target) == 70
        assert made.tokens[n].tolist() == source + [ids.pad] * (90 - len(source))
        assert made.attention_mask is not None
        assert made.attention_mask[n].sum() == len(source)
        assert made.labels[n].tolist() == target + [ids.pad] * (70 - len(target))
        assert made.loss_mask[n].tolist() == [1.0] * len(target) + [0.0] * (70 - len(target))
        assert made.decoder_tokens is not None
        start = ids.end if name == "bart" else ids.pad
        assert made.decoder_tokens[n, : len(target)].tolist() == [start, *target[:-1]]
    assert cut, "some text is cut"


def test_inputs_may_be_in_another_vocabulary(write: Write, tokenizer_files: dict[str, Path]) -> None:
    """Each side has the special ids of its own vocabulary, padding too, and is cut by its own tokens."""
    rows = _rows(8)
    dataset = write(rows, kind="wordpiece")
    foreign = LabelledDataset(dataset.address, dataset.tokenizer_path, None, tokenizer_files["byte_bpe"])
    assert foreign.identity != dataset.identity
    source, tokenizer = foreign.source_tokenizer, dataset.tokenizer()
    assert source is not None
    plain = _recipe(dataset, "bart", 90, 40, prefix="sum: ")
    recipe = plain.with_source(source)
    assert recipe.settings != plain.settings
    assert recipe.source is not None
    assert recipe.vocabulary == plain.vocabulary
    read, written = recipe.source.inputs.specials, recipe.inputs.specials
    assert read.pad != written.pad
    samples = recipe.samples(foreign, "train")
    assert isinstance(samples, TextToTextSamples)
    made, cut = samples.rows(0, _ids(8)), 0
    for n, row in enumerate(rows):
        encoded, wanted = source.encode(f"sum: {row['input']}"), tokenizer.encode(row["target"])
        tokens = [read.cls, *encoded[:88], read.end]
        labels = [written.cls, *wanted[:38], written.end]
        cut += len(encoded) > 88 or len(wanted) > 38
        assert made.tokens[n].tolist() == tokens + [read.pad] * (90 - len(tokens))
        assert made.labels[n].tolist() == labels + [written.pad] * (40 - len(labels))
        question, start = samples.question(n, 5)
        assert (question.tolist(), start) == (tokens, written.end)
    assert made.tokens.max() < recipe.source.size
    assert samples.num_cut == cut > 0


def test_a_decoder_alone_reads_both_and_the_input_is_cut_first(write: Write) -> None:
    dataset = write([{"input": "ab" * 40, "target": "ba"}, {"input": "ab", "target": "ba" * 40}], kind="bytes")
    recipe = _recipe(dataset, "t5", 40, alone=True)
    made, tokenizer = recipe.samples(dataset, "train").rows(0, _ids(2)), dataset.tokenizer()
    end = tokenizer.end_of_text
    start = recipe.inputs.specials.start
    first = [*tokenizer.encode("ab" * 18), end, start, *tokenizer.encode("ba")]
    assert made.tokens[0].tolist() == first
    assert made.labels[0].tolist() == [*first[1:], end]
    assert made.loss_mask[0].nonzero()[0].tolist() == [37, 38, 39]
    second = [*tokenizer.encode("ab"), end, start, *tokenizer.encode("ba" * 18)]
    assert made.tokens[1].tolist() == second
    assert made.loss_mask[1].sum() == 37
    assert made.attention_mask is not None
    assert made.attention_mask.sum(axis=1).tolist() == [37, 3]


def test_each_task_of_a_run_has_a_prefix(write: Write) -> None:
    tasks = {name: write(_rows(9, seed), name=name) for seed, name in enumerate(("cola", "sst2"))}
    recipe = _recipe(tasks["cola"], "t5", 100, 100, prefix={"cola": "cola sentence: ", "sst2": ""})
    stream = SampleStream([(dataset, 1.0) for dataset in tasks.values()], recipe, seed=0)
    batch, datasets = stream.batch(0, 18), list(tasks.values())
    for row, (source, _, number) in enumerate(batch.sample_ids.tolist()):
        text = ("cola sentence: ", "")[source] + datasets[source].row("train", number)["input"]
        expected = [*datasets[source].tokenizer().encode(text)[:99], recipe.inputs.end]
        assert batch.tokens[row, : len(expected)].tolist() == expected
    with pytest.raises(DataError, match=r"objective.prefix has no prefix of the source mrpc, only of cola, sst2"):
        recipe.samples(write(_rows(2), name="mrpc"), "train")


def test_of_several_targets_the_first_is_trained_on(write: Write) -> None:
    dataset = write([{"input": "ab", "target": ["ba", "be"]}, {"input": "ab", "target": "ba"}])
    samples = _recipe(dataset, "t5", 8, 8).samples(dataset, "train")
    assert isinstance(samples, TextToTextSamples)
    made = samples.rows(0, _ids(2))
    assert (made.labels[0] == made.labels[1]).all()
    assert [samples.references(n) for n in range(2)] == [["ba", "be"], ["ba"]]
    reads, start = samples.question(0, 8)
    assert made.tokens[0, : len(reads)].tolist() == reads.tolist()
    assert made.decoder_tokens is not None
    assert made.decoder_tokens[0, 0] == start


def test_a_question_does_not_depend_on_the_expected_answer(write: Write) -> None:
    dataset = write([{"input": "ab" * 40, "target": target} for target in ("ba", "ba" * 40)], kind="bytes")
    samples = _recipe(dataset, "t5", 40, alone=True).samples(dataset, "train")
    assert isinstance(samples, TextToTextSamples)
    first, second = (samples.question(n, 6)[0].tolist() for n in range(2))
    assert first == second == [*dataset.tokenizer().encode("ab" * 16), dataset.tokenizer().end_of_text]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"input": "a"}, r"the row has no field 'target'"),
        ({"input": "a", "target": []}, r"the field 'target' is not text but \[\]"),
        ({"input": "a", "target": ["b", ""]}, r"the field 'target' is empty"),
        ({"input": " ", "target": "b"}, r"the field 'input' is empty"),
    ],
)
def test_a_bad_row_is_named(write: Write, row: Any, problem: str) -> None:
    dataset = write([*_rows(2), row])
    with pytest.raises(DataError, match=rf"train.jsonl, line 3: {problem}"):
        _recipe(dataset, "t5", 40, 40).samples(dataset, "train")


@pytest.mark.parametrize(("lengths", "alone"), [((1, 8), False), ((8, 1), False), ((3,), True)])
def test_lengths_without_text_are_refused(write: Write, lengths: tuple[int, ...], alone: bool) -> None:
    dataset = write(_rows(2))
    with pytest.raises(DataError, match=r"too few for"):
        _recipe(dataset, "t5", *lengths, alone=alone)
