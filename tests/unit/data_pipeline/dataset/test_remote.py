"""Datasets at addresses: the same batches as from the disk, few requests, and every fault either mended or named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.cli import inspect
from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS, DatasetManifest
from data_pipeline.errors import DataError
from data_pipeline.loader import SampleStream, load
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.http_store import HttpStore

LENGTH = 64
ROOT = Path(__file__).parents[4]


def whole(dataset: Dataset) -> np.ndarray:
    return dataset.window("train", 0, dataset.num_tokens("train"))


def members(dataset: Dataset, split: Any = "train") -> int:
    return sum(len(shard.members) for shard in dataset.manifest.splits[split].shards)


@pytest.mark.parametrize("kind", ["http", "memory"])
def test_a_run_that_goes_on_elsewhere_sees_the_same_batches(
    dataset: Dataset, store: HttpStore, in_memory: str, cache: Cache, kind: str
) -> None:
    address = {"http": store.url, "memory": in_memory}[kind]
    here = SampleStream([(dataset, 1.0)], LENGTH, seed=3)
    there = SampleStream([(Dataset(address, cache), 1.0)], LENGTH, seed=3)
    expected = load(here, here.cursor(0), lambda _: 8, workers=0)
    first = [next(expected) for _ in range(3)]
    resumed = load(there, first[1].cursor, lambda _: 8, workers=2)
    batch = next(resumed)
    assert np.array_equal(batch.tokens, first[2].tokens)
    assert batch.data_hash == first[2].data_hash
    assert batch.cursor == first[2].cursor


@pytest.mark.parametrize("length", [1, 50, 999, 4000])
def test_windows_within_and_across_members_are_those_of_the_disk(
    dataset: Dataset, in_memory: str, cache: Cache, length: int
) -> None:
    tokens = dataset.num_tokens("train")
    starts = np.random.default_rng(length).integers(0, tokens - length + 1, 50)
    starts[:2] = 0, tokens - length
    remote = Dataset(in_memory, cache)
    assert np.array_equal(remote.read("train", starts, length), dataset.read("train", starts, length))
    with pytest.raises(ValueError, match="outside the stream"):
        remote.read("train", np.array([tokens - length + 1]), length)


def test_documents_starts_tokenizer_and_counts_are_those_of_the_disk(
    dataset: Dataset, in_memory: str, cache: Cache
) -> None:
    remote = Dataset(in_memory, cache)
    assert remote.manifest == dataset.manifest
    assert remote.tokenizer().identity == dataset.tokenizer().identity
    assert np.array_equal(remote.unigram_counts(), dataset.unigram_counts())
    for split in SPLITS:
        assert np.array_equal(remote.starts(split), dataset.starts(split))
        for (record, tokens), (known, expected) in zip(remote.documents(split), dataset.documents(split), strict=True):
            assert record == known
            assert np.array_equal(tokens, expected)


def test_each_member_is_fetched_once_and_by_its_range(dataset: Dataset, store: HttpStore, cache: Cache) -> None:
    remote = Dataset(store.url, cache)
    assert not store.ranges(".tar")
    stream = SampleStream([(remote, 1.0)], LENGTH, seed=0)
    for start in range(0, 64, 8):
        stream.batch(start, 8)
    whole(remote)
    ranges = Counter(store.ranges(".tar"))
    expected = {
        (shard.file, f"bytes={member.offset}-{member.offset + 2 * member.tokens - 1}")
        for shard in dataset.manifest.splits["train"].shards
        for member in shard.members
    }
    assert set(ranges) == expected
    assert set(ranges.values()) == {1}
    store.requests.clear()
    again = Dataset(store.url, Cache(cache.folder))  # as the next start of the run does
    assert np.array_equal(whole(again), whole(dataset))
    again.tokenizer()
    assert store.ranges("") == [(MANIFEST, store.ranges("")[0][1])]


def test_two_processes_share_a_cache(dataset: Dataset, store: HttpStore, cache: Cache) -> None:
    script = (
        "import sys; from pathlib import Path; from data_pipeline.dataset.cache import Cache; "
        "from data_pipeline.dataset.dataset import Dataset; d = Dataset(sys.argv[1], Cache(Path(sys.argv[2]))); "
        "print(d.window('train', 0, d.num_tokens('train')).sum())"
    )
    command = [sys.executable, "-c", script, store.url, str(cache.folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) for _ in range(2)]
    sums = [int(process.communicate(timeout=60)[0]) for process in both]
    assert sums == [whole(dataset).sum()] * 2
    assert len(store.ranges(".tar")) == members(dataset)


def test_wrong_bytes_are_named_and_not_kept(store: HttpStore, cache: Cache, waits: list[float]) -> None:
    remote = Dataset(store.url, cache)
    store.fault = lambda file, number: "flip"
    for _ in range(2):
        with pytest.raises(DataError, match=rf"bytes .* of {store.url}/train-00000.tar don't match the manifest"):
            remote.window("train", 0, 10)
    with pytest.raises(DataError, match=rf"bytes .* of {store.url}/train-00000.tar don't match the manifest"):
        remote.starts("train")
    store.fault = lambda file, number: None
    remote.window("train", 0, 10)


def test_a_replaced_or_cut_object_is_named(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float]
) -> None:
    remote = Dataset(store.url, cache)
    path = store.directory / "train-00000.tar"
    data = path.read_bytes()
    path.write_bytes(b"other" * len(data))
    with pytest.raises(DataError, match=r"train-00000.tar has [\d,]+ bytes, but was written with"):
        remote.window("train", 0, 10)
    first, *_, last = dataset.manifest.splits["train"].shards[0].members
    path.write_bytes(data[: last.offset + 10])
    with pytest.raises(DataError, match=r"train-00000.tar ends before the requested bytes"):
        remote.window("train", dataset.manifest.splits["train"].shards[0].tokens - 10, 10)
    path.write_bytes(data[: first.offset])
    with pytest.raises(DataError, match=r"train-00000.tar ends before the requested bytes"):
        remote.window("train", 0, 10)


def test_a_server_without_ranges_is_refused(store: HttpStore, cache: Cache, waits: list[float]) -> None:
    remote = Dataset(store.url, cache)
    store.fault = lambda file, number: "whole"
    with pytest.raises(DataError, match=r"train-00000.tar ignores byte ranges and sends entire files"):
        remote.window("train", 0, 10)


def test_a_dataset_built_anew_at_the_same_address_is_another_one(
    dataset: Dataset, store: HttpStore, cache: Cache, tmp_path: Path
) -> None:
    assert Dataset(store.url, cache).identity == dataset.identity
    other = build_dataset(make_documents(5, 60), tmp_path, "other")
    store.directory = other.directory
    remote = Dataset(store.url, cache)
    assert remote.identity == other.identity
    assert np.array_equal(whole(remote), whole(other))
    assert remote.tokenizer().identity == other.tokenizer().identity


def test_a_manifest_without_checksums_of_members_is_read_only_where_it_lies(
    dataset: Dataset, store: HttpStore, cache: Cache, waits: list[float]
) -> None:
    values = json.loads((store.directory / MANIFEST).read_text())
    for split in values["splits"].values():
        for shard in split["shards"]:
            shard["members"] = [{key: member[key] for key in ("offset", "tokens")} for member in shard["members"]]
    del values["checksum"]
    (store.directory / MANIFEST).write_text(json.dumps(values))
    assert np.array_equal(whole(Dataset(store.directory)), whole(dataset))
    with pytest.raises(DataError, match=rf"{store.url}/manifest.json has no checksums of members"):
        Dataset(store.url, cache)


def test_a_huge_manifest_or_tokenizer_is_not_fetched(
    store: HttpStore, cache: Cache, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_pipeline.dataset.remote.LIMIT_BYTES", 1000)
    with pytest.raises(DataError, match=r"manifest.json has [\d,]+ bytes, more than the 1,000"):
        Dataset(store.url, cache)
    assert not store.counts[MANIFEST]


@pytest.mark.parametrize(("address", "package"), [("s3://b/d", "s3fs"), ("gs://b/d", "gcsfs")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, cache: Cache, address: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"{address} can't be read without .*: pip install {package}"):
        Dataset(address, cache)


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("nonsense://b/d", "is no kind of address that can be read"),
        ("ftp://host/d", "is no kind of address that can be read"),
        ("https://me:secret@host/d", "on host holds a password or a query"),
        ("https://host/d?token=secret", "on host holds a password or a query"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(cache: Cache, address: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        Dataset(address, cache)
    assert "secret" not in str(caught.value)


def test_a_file_address_is_a_path(dataset: Dataset) -> None:
    found = Dataset(f"file://{dataset.directory}")
    assert not found.remote
    assert found.directory == dataset.directory


def test_inspect_verifies_what_lies_elsewhere(
    store: HttpStore,
    waits: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    inspect(store.url)
    assert "checksums   all good" in capsys.readouterr().out
    assert (tmp_path / "xdg" / "pretrain" / "datasets").is_dir()
    path = store.directory / "train-00001.tar"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")  # in the padding at the end, which no member covers
    with pytest.raises(DataError, match=f"{store.url}/train-00001.tar is damaged"):
        inspect(store.url)


def test_checksums_of_members_are_those_of_the_bytes_in_the_tar(dataset: Dataset) -> None:
    import hashlib

    manifest: DatasetManifest = dataset.manifest
    for split in SPLITS:
        for shard in manifest.splits[split].shards:
            data, end = (dataset.directory / shard.file).read_bytes(), 0
            for number, member in enumerate(shard.members):
                tokens = data[member.offset : member.offset + 2 * member.tokens]
                assert hashlib.sha256(tokens).hexdigest() == member.sha256
                begin = -(-end // 512) * 512
                assert shard.head(number, 2) == (begin, member.offset)
                assert hashlib.sha256(data[begin : member.offset]).hexdigest() == member.head_sha256
                end = member.offset + 2 * member.tokens
