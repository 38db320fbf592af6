"""Copies of a text lie apart in the stream, in the split of their text, and are counted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.build.build import build
from data_pipeline.build.copies import copy_numbers, places_of_copies
from data_pipeline.build.inputs import accepted_identities, build_identity, find_sources
from data_pipeline.cli import _counts
from data_pipeline.common.hashing import file_sha256
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS, DatasetManifest, SplitName
from data_pipeline.reading.documents import Document
from tests.helpers.datasets import Silent, settings

TEXTS = [f"the text {number} of two hundred, which is as long as texts are" for number in range(200)]
COPIES = [*TEXTS[:98], *[TEXTS[150]] * 40]
TOKENIZER = {"type": "bytes"}


def _build(folder: Path, name: str, *files: list[str], **changes: object) -> Dataset:
    source = folder / f"in-{name}"
    source.mkdir()
    for number, texts in enumerate(files):
        (source / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = settings(input=str(source), output=folder / name, tokenizer=TOKENIZER, workers=1, **changes)
    assert build(config, Silent)
    return Dataset(config.output)


def _documents(dataset: Dataset, split: SplitName) -> list[bytes]:
    return [bytes(tokens.astype(np.uint8) - 3) for _, tokens in dataset.documents(split)]


def test_copies_lie_apart_in_the_split_of_their_text(tmp_path: Path) -> None:
    dataset = _build(tmp_path, "set", TEXTS, COPIES)
    assert len(dataset.manifest.splits["train"].shards) > 2
    found = {split: _documents(dataset, split) for split in SPLITS}
    assert sorted(itertools.chain(*found.values())) == sorted(text.encode() for text in [*TEXTS, *COPIES])
    beside = 0
    for split, texts in found.items():
        keys = [Document((text.decode(),), "", 0).key for text in texts]
        assert all((key < 0.1 * 2**64) == (split == "validation") for key in keys)
        beside += sum(a == b for a, b in itertools.pairwise(texts))
        assert dataset.manifest.splits[split].copies == len(texts) - len(set(texts))
    assert beside < 15, "of 138, by chance; side by side all would be"
    assert "copies      138 of 338 documents (40.83%) have the text of another" in _counts(dataset)
    without = _build(tmp_path, "without", TEXTS)
    for split in SPLITS:
        texts = _documents(without, split)
        assert texts == sorted(texts, key=lambda text: Document((text.decode(),), "", 0).key)
        assert without.manifest.splits[split].copies == 0


def test_the_stream_depends_neither_on_chunks_nor_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _build(tmp_path, "one", TEXTS, COPIES)
    monkeypatch.setattr("data_pipeline.common.grid._FEW_ROWS", 1)
    pieces = _build(tmp_path, "pieces", TEXTS, COPIES, piece_bytes=9000)
    other = _build(tmp_path, "other", COPIES[::-1], TEXTS[:50], TEXTS[50:], shard_tokens=9000)
    assert pieces.manifest.splits == one.manifest.splits
    for split in SPLITS:
        assert _documents(other, split) == _documents(one, split)


def test_datasets_of_before_stay_what_they_are(tmp_path: Path) -> None:
    dataset = _build(tmp_path, "set", TEXTS)
    config = settings(input=str(tmp_path / "in-set"), output=tmp_path / "set", tokenizer=TOKENIZER)
    sources = find_sources(config)
    sha256 = {file.path: file_sha256(file.path) for file in sources[0].inputs}
    before = build_identity(config, sources, sha256, as_now=False)
    assert dataset.manifest.build.identity == build_identity(config, sources, sha256) != before
    assert before in accepted_identities(config, sources, sha256)
    path = dataset.directory / MANIFEST
    manifest = DatasetManifest.load(dataset.directory)
    split = {name: split.model_copy(update={"copies": None}) for name, split in manifest.splits.items()}
    manifest.model_copy(update={"splits": split, "build": manifest.build.model_copy(update={"identity": before})}).save(
        dataset.directory
    )
    assert "copies" not in path.read_text()
    assert "copies" not in _counts(Dataset(dataset.directory))
    assert not build(config, Silent)
    assert Dataset(dataset.directory).identity == dataset.identity


def test_copies_are_numbered_over_all_parts_in_order() -> None:
    parts = [np.array(keys, np.uint64) for keys in ([1, 1, 5], [], [1, 4, 5, 2**64 - 1], [2**64 - 1])]
    assert [its.tolist() for its in copy_numbers(parts)] == [[0, 1, 0], [], [2, 0, 1, 0], [1]]
    keys, numbers = np.full(1000, 7, np.uint64), np.arange(1, 1001)
    for least, end in ((0, 2**64), (2**60, 2**64), (0, 2**60)):
        places = places_of_copies(keys, numbers, least, end)
        assert least <= places.min() <= places.max() < end
        assert len(set(places.tolist())) == 1000
        assert abs(float(places.astype(float).mean() - least) / (end - least) - 0.5) < 0.05
