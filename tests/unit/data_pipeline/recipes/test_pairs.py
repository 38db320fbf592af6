"""Datasets of pairs: what is built of them, and the samples that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream
from data_pipeline.reading.documents import Document
from data_pipeline.recipes.registry import OBJECTIVES
from tests.helpers.datasets import Silent, build_dataset, build_pairs, make_documents, settings

PAIRS = [(f"der Satz Nummer {i} ist {'sehr ' * (i % 7)}lang.", f"sentence {i}!") for i in range(120)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return build_pairs(PAIRS, tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def multi30k() -> Path:
    folder = Path(__file__).parents[5] / "shared" / "data" / "pairs"
    if not folder.is_dir():
        pytest.skip("no folder of translation pairs beside the repository")
    return folder


def texts_of(dataset: Dataset, split: Any) -> list[tuple[str, ...]]:
    tokenizer, found = dataset.tokenizer(), []
    for _, tokens in dataset.documents(split):
        (end,) = np.flatnonzero(tokens == tokenizer.end_of_text)
        found.append((tokenizer.decode(tokens[:end]), tokenizer.decode(tokens[end + 1 :])))
    return found


def test_both_texts_of_a_pair_are_kept_and_share_a_split(pairs: Dataset) -> None:
    held = [pair for pair in PAIRS if Document(pair, "", 0).key < 0.1 * 2**64]
    assert 3 <= len(held) <= 30
    assert set(texts_of(pairs, "validation")) == set(held)
    assert sorted(texts_of(pairs, "train")) == sorted(set(PAIRS) - set(held))
    assert pairs.manifest.pairs
    split = pairs.manifest.splits["validation"]
    assert split.words == sum(len(text.split()) for pair in held for text in pair)
    assert split.text_bytes == sum(len(text.encode()) for pair in held for text in pair)


def test_lines_with_a_blank_side_are_left_out_and_keep_their_number(tmp_path: Path) -> None:
    dataset = build_pairs([*PAIRS[:40], (" ", "x"), ("y", ""), *PAIRS[40:]], tmp_path)
    numbers = sorted(record["index"] for split in SPLITS for record, _ in dataset.documents(split))
    assert numbers == [*range(40), *range(42, 122)]


@pytest.mark.parametrize(
    ("name", "line", "complaint"),
    [
        ("a.jsonl", '{"source": "a"}', r"a\.jsonl, line 1: has no field 'target'; .* in pair_fields"),
        ("a.jsonl", '{"source": "a", "target": 5}', "field 'target' is int"),
        ("a.txt", "text", "with pair_fields, give .jsonl and .parquet files only"),
    ],
)
def test_what_holds_no_pairs_is_refused(tmp_path: Path, name: str, line: str, complaint: str) -> None:
    (tmp_path / name).write_text(line)
    fields = ("source", "target")
    with pytest.raises(DataError, match=complaint):
        build(settings(input=str(tmp_path / name), output=tmp_path / "out", pair_fields=fields), Silent)


def test_a_row_holds_source_and_target_with_an_end_after_each(pairs: Dataset) -> None:
    recipe = OBJECTIVES["pairs"]().recipe(pairs.tokenizer(), 100, 40)
    stream, tokenizer = SampleStream([(pairs.directory, 1.0)], recipe, 0), pairs.tokenizer()
    texts, batch = texts_of(pairs, "train"), stream.batch(0, stream.num_samples[0])
    assert stream.samples[0].num_skipped == 0
    assert batch.attention_mask is not None
    assert batch.decoder_tokens is not None
    assert sorted(batch.sample_ids[:, 2]) == list(range(len(texts)))
    end, pad = tokenizer.end_of_text, tokenizer.vocabulary_size
    for row, number in enumerate(batch.sample_ids[:, 2].tolist()):
        source, target = (tokenizer.encode(text) for text in texts[number])
        assert batch.tokens[row].tolist() == [*source, end, *[pad] * (99 - len(source))]
        assert batch.labels[row].tolist() == [*target, end, *[pad] * (39 - len(target))]
        assert batch.decoder_tokens[row].tolist() == [pad, *target, end, *[pad] * (38 - len(target))]
        assert batch.loss_mask[row].sum() == len(target) + 1
        assert batch.attention_mask[row].sum() == len(source) + 1


@pytest.mark.parametrize("decoder_only", [False, True])
def test_pairs_too_long_are_left_out_and_counted(pairs: Dataset, decoder_only: bool) -> None:
    tokenizer = pairs.tokenizer()
    sizes = [[len(tokenizer.encode(text)) + 1 for text in pair] for pair in texts_of(pairs, "train")]
    length = int(np.median([sum(pair) if decoder_only else pair[0] for pair in sizes]))
    most = max(target for _, target in sizes) - 1
    recipe = OBJECTIVES["pairs"]().recipe(tokenizer, length, None if decoder_only else most, decoder_only)
    samples = recipe.samples(pairs, "train")
    fit = [pair for pair in sizes if (sum(pair) if decoder_only else pair[0]) <= length]
    assert 0 < len(fit) < len(sizes)
    if not decoder_only:
        fit, sources_fit = [pair for pair in fit if pair[1] <= most], len(fit)
        assert 0 < len(fit) < sources_fit
    assert (samples.count, samples.num_skipped) == (len(fit), len(sizes) - len(fit))
    rows = samples.rows(0, np.array([[0, 0, number] for number in range(samples.count)]))
    assert rows.loss_mask.sum(axis=1).tolist() == [target for _, target in fit]
    with pytest.raises(DataError, match=r"No pair of the train split .* fits 3 source and 3 target"):
        OBJECTIVES["pairs"]().recipe(tokenizer, 3).samples(pairs, "train")


def test_an_older_manifest_is_of_no_pairs_and_names_sentencepiece(dataset: Dataset, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(dataset.directory, tmp_path / "old"))
    values = json.loads((copy / MANIFEST).read_text())
    assert not values.pop("pairs")
    del values["build"]["validation_inputs"], values["tokenizer"]["library"], values["checksum"]
    values["tokenizer"]["sentencepiece"] = values["tokenizer"].pop("version")
    (copy / MANIFEST).write_text(json.dumps(values))
    old = Dataset(copy)
    assert old.manifest == dataset.manifest
    assert old.tokenizer().identity == dataset.tokenizer().identity


def test_given_validation_files_are_the_validation_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [text.strip() for text in make_documents(0, 100)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("\n\n".join(documents))
    (tmp_path / "in" / "held.txt").write_text("\n\n".join(documents[:5]) + "\n\nnovel éé ü")

    def config(**changes: Any) -> BuildConfig:
        values = {"input": str(tmp_path / "in"), "validation_input": str(tmp_path / "in" / "held.txt")}
        return settings(**{**values, "output": tmp_path / "out", **changes})

    build(config(), Silent)
    dataset = Dataset(tmp_path / "out")
    tokenizer = dataset.tokenizer()
    held = [tokenizer.decode(tokens) for _, tokens in dataset.documents("validation")]
    assert sorted(held) == sorted([*documents[:5], "novel éé ü"])
    assert sorted(tokenizer.decode(tokens) for _, tokens in dataset.documents("train")) == sorted(documents)
    assert [file.file for file in dataset.manifest.build.validation_inputs] == ["held.txt"]
    alone = build_dataset(documents, tmp_path, "alone")
    assert not build(config(), Silent)
    assert alone.manifest.build.identity != dataset.manifest.build.identity
    with pytest.raises(DataError, match="other input or with other settings"):
        build(config(validation_input=None), Silent)
    with pytest.raises(DataError, match="validation_input names all of the input"):
        build(config(validation_input=str(tmp_path / "in"), output=tmp_path / "x"), Silent)
    (tmp_path / "in" / "held.txt").write_text(" \n\n ")
    with pytest.raises(DataError, match=r"validation_input .* holds no text"):
        build(config(output=tmp_path / "x"), Silent)


def test_wordpiece_has_specials_of_its_own() -> None:
    with pytest.raises(ValidationError, match="wordpiece has its own"):
        BuildConfig(input="a", output="b", tokenizer={"type": "wordpiece", "specials": "bert"})


def test_multi30k_comes_back(multi30k: Path, tmp_path: Path) -> None:
    config = BuildConfig(
        input=str(multi30k / "multi30k_val.jsonl.gz"),
        validation_input=str(multi30k / "multi30k_test.jsonl.gz"),
        output=tmp_path / "out",
        pair_fields=("source", "target"),
        tokenizer={"vocabulary": 2000, "specials": "t5"},
    )
    build(config, Silent)
    dataset = Dataset(tmp_path / "out")
    assert [dataset.manifest.splits[split].documents for split in SPLITS] == [1014, 1000]
    first = (
        "Eine Gruppe von Männern lädt Baumwolle auf einen Lastwagen",
        "A group of men are loading cotton onto a truck",
    )
    assert first in texts_of(dataset, "train")
    recipe = OBJECTIVES["pairs"]().recipe(dataset.tokenizer(), 64)
    samples = recipe.samples(dataset, "train")
    assert samples.count + samples.num_skipped == 1014
    assert samples.count > 900
    assert recipe.vocabulary == 2000
