"""The tars: readable by plain webdataset, the same bytes every time, and no damage goes unseen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset, DocumentSpan
from data_pipeline.dataset.manifest import MANIFEST, SPLITS, SplitName
from data_pipeline.dataset.member_headers import read_records
from data_pipeline.dataset.shard_writer import ShardWriter, token_dtype
from data_pipeline.errors import DataError
from data_pipeline.tokenizers.load import train_tokenizer
from tests.helpers.datasets import build_dataset, make_documents


@pytest.fixture
def copy(dataset: Dataset, tmp_path: Path) -> Path:
    """A dataset directory to damage."""
    return Path(shutil.copytree(dataset.directory, tmp_path / "copy"))


def stream_of(dataset: Dataset, split: Any) -> np.ndarray:
    end = dataset.manifest.tokenizer.end_of_text
    return np.concatenate([[*tokens, end] for _, tokens in dataset.documents(split)])


def test_plain_webdataset_reads_the_same_tokens(dataset: Dataset) -> None:
    webdataset = pytest.importorskip("webdataset")
    for split in SPLITS:
        shards = [str(dataset.directory / shard.file) for shard in dataset.manifest.splits[split].shards]
        samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode())
        assert {"tokens.npy", "starts.npy", "documents.json"} <= set(samples[0])
        stream = np.concatenate([sample["tokens.npy"] for sample in samples])
        assert stream.dtype == np.uint16
        assert np.array_equal(stream, stream_of(dataset, split))
        assert np.array_equal(stream, dataset.window(split, 0, dataset.num_tokens(split)))
        for sample in samples:
            ends = np.flatnonzero(sample["tokens.npy"] == dataset.manifest.tokenizer.end_of_text)
            assert np.array_equal(sample["starts.npy"], [0, *(ends[:-1] + 1)])
            assert len(sample["documents.json"]) == len(ends)


def test_there_are_several_members_and_shards(dataset: Dataset) -> None:
    shards = dataset.manifest.splits["train"].shards
    assert len(shards) >= 3
    assert all(len(shard.members) >= 3 for shard in shards[:-1])


def test_building_twice_gives_the_same_bytes(dataset: Dataset, tmp_path: Path) -> None:
    again = build_dataset(make_documents(0, 200), tmp_path)
    names = sorted(path.name for path in dataset.directory.iterdir())
    assert sorted(path.name for path in again.directory.iterdir()) == names
    for name in set(names) - {MANIFEST}:  # the manifest says where it was built
        assert (again.directory / name).read_bytes() == (dataset.directory / name).read_bytes()
    assert again.identity == dataset.identity
    assert again.manifest.build.identity == dataset.manifest.build.identity


def test_documents_come_back_with_where_they_came_from(dataset: Dataset) -> None:
    tokenizer = dataset.tokenizer()
    found = {}
    for split in SPLITS:
        for record, tokens in dataset.documents(split):
            text = tokenizer.decode(tokens)
            assert record["source"] == "set.txt"
            assert record["bytes"] == len(text.encode())
            assert record["words"] == len(text.split())
            found[record["index"]] = text
    assert [found[i] for i in range(200)] == [text.strip("\n") for text in make_documents(0, 200)]


def test_the_manifest_counts_what_is_there(dataset: Dataset) -> None:
    tokenizer = dataset.tokenizer()
    for split in SPLITS:
        texts = [tokenizer.decode(tokens) for _, tokens in dataset.documents(split)]
        counted = dataset.manifest.splits[split]
        assert counted.documents == len(texts) == sum(shard.documents for shard in counted.shards)
        assert counted.text_bytes == sum(len(text.encode()) for text in texts)
        assert counted.words == sum(len(text.split()) for text in texts)
        assert counted.tokens == len(stream_of(dataset, split)) == sum(shard.tokens for shard in counted.shards)
    expected = np.bincount(stream_of(dataset, "train"), minlength=400)
    assert np.array_equal(dataset.unigram_counts(), expected)


@pytest.mark.parametrize("length", [1, 50, 999, 4000])
def test_windows_equal_the_stream_within_and_across_members_and_shards(dataset: Dataset, length: int) -> None:
    stream = stream_of(dataset, "train")
    starts = np.random.default_rng(length).integers(0, len(stream) - length + 1, 200)
    starts[:2] = 0, len(stream) - length
    expected = np.stack([stream[start : start + length] for start in starts])
    read = dataset.read("train", starts, length)
    assert read.dtype == np.int64
    assert np.array_equal(read, expected)


def test_a_few_windows_elsewhere_come_right_among_many_of_one_member(dataset: Dataset) -> None:
    stream, length = stream_of(dataset, "train"), 50
    border = dataset.manifest.splits["train"].shards[0].members[0].tokens
    assert border > 2 * length
    starts = np.array([*range(0, border - length, 7), border - 20, len(stream) - length, 3, border - 1])
    expected = np.stack([stream[start : start + length] for start in starts])
    for order in (starts, starts[::-1]):
        found = expected if order is starts else expected[::-1]
        assert np.array_equal(dataset.read("train", order, length), found)


def test_reading_outside_the_stream_is_refused(dataset: Dataset) -> None:
    tokens = dataset.num_tokens("train")
    for start, count in [(-1, 1), (tokens, 1), (tokens - 5, 6)]:
        with pytest.raises(ValueError, match="outside the stream"):
            dataset.window("train", start, count)
        with pytest.raises(ValueError, match="outside the stream"):
            dataset.read("train", np.array([0, start, 1]), count)


def test_a_large_vocabulary_is_stored_in_32_bits(tmp_path: Path) -> None:
    assert [token_dtype(n) for n in (65_536, 65_537)] == ["uint16", "uint32"]
    writer = ShardWriter(tmp_path / "a.tar", "a.tar", 70_000, 10)
    writer.add(np.array([1, 68_000, 69_999], np.int32), {})
    shard = writer.close()
    assert shard is not None
    (member,) = shard.members
    stored = np.fromfile(tmp_path / shard.file, "<u4", count=3, offset=member.offset)
    assert stored.tolist() == [1, 68_000, 69_999]


def test_every_flipped_byte_of_a_shard_is_found_by_verify(copy: Path) -> None:
    Dataset(copy).verify()
    for name in [path.name for path in copy.iterdir() if path.name != MANIFEST]:
        data = (copy / name).read_bytes()
        for place in (0, len(data) // 2, len(data) - 1):
            (copy / name).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(DataError, match=f"{name} is damaged"):
                Dataset(copy).verify()
        (copy / name).write_bytes(data)
    Dataset(copy).verify()


def test_missing_and_cut_files_are_found_on_opening(copy: Path) -> None:
    for name in ("train-00001.tar", "validation-00000.tar", "unigram.npy"):
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[:-1])
        with pytest.raises(DataError, match=rf"{name} has [\d,]+ bytes, but was written with"):
            Dataset(copy)
        (copy / name).unlink()
        with pytest.raises(DataError, match=f"{name} is missing"):
            Dataset(copy)
        (copy / name).write_bytes(data)
    Dataset(copy)


def test_a_missing_or_damaged_manifest_is_refused(copy: Path) -> None:
    whole = (copy / MANIFEST).read_text()
    values = json.loads(whole)
    swapped = json.loads(whole)
    swapped["splits"]["train"]["shards"].reverse()
    without = {key: value for key, value in values.items() if key != "splits"}
    outside = json.loads(whole)
    outside["splits"]["train"]["shards"][0]["members"][-1]["offset"] = 2 * 10**9
    for text, complaint in [
        (whole[:100], "is no dataset's manifest"),
        (json.dumps({**values, "format": 3}), "is of format 3, this program reads 1 and 2"),
        (json.dumps(without), "damaged at splits"),
        (json.dumps({**values, "more": 1}), "damaged at more"),
        (json.dumps(swapped), "changed by hand"),
        (json.dumps(outside), "outside train-00000.tar"),
    ]:
        (copy / MANIFEST).write_text(text)
        with pytest.raises(DataError, match=complaint):
            Dataset(copy)
    (copy / MANIFEST).unlink()
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        Dataset(copy)


def test_another_tokenizer_in_its_place_is_refused(copy: Path) -> None:
    train_tokenizer(make_documents(9, 200), "bpe", 400).save(copy / "tokenizer.model")
    with pytest.raises(DataError, match="isn't the tokenizer that made this dataset"):
        Dataset(copy).tokenizer()
    (copy / "tokenizer.model").unlink()
    with pytest.raises(DataError, match=r"tokenizer.model can't be read"):
        Dataset(copy).tokenizer()


@pytest.mark.parametrize("split", SPLITS)
def test_documents_at_a_place_are_those_that_lie_there(dataset: Dataset, split: SplitName) -> None:
    records, begin = [], 0
    for record, tokens in dataset.documents(split):
        records.append(DocumentSpan(record, begin, len(tokens) + 1))
        begin += len(tokens) + 1
    draw = np.random.default_rng(0)
    places = [(int(draw.integers(begin)), int(draw.integers(1, 3000))) for _ in range(100)]
    places += [(r.start, r.tokens) for r in records] + [(r.start + r.tokens - 1, 2) for r in records]
    for start, count in [(0, 1), (0, begin), (begin - 1, 1), *places]:
        count = min(count, begin - start)
        expected = [r for r in records if r.start < start + count and start < r.start + r.tokens]
        assert dataset.documents_at(split, start, count) == expected
    for start, count in ((-1, 1), (begin, 1), (0, begin + 1), (5, 0)):
        with pytest.raises(ValueError, match="outside the stream"):
            dataset.documents_at(split, start, count)


def test_documents_at_a_place_are_read_from_there_alone(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(
        "data_pipeline.dataset.dataset.read_records", lambda head, shard: read.append(head) or read_records(head, shard)
    )
    shards = dataset.manifest.splits["train"].shards
    start = shards[0].tokens + shards[1].members[0].tokens + 3
    assert dataset.documents_at("train", start, 1)
    assert len(read) == 1
    assert len(read[0]) < shards[1].bytes / 2
