"""Datasets of many shards: their manifest lists them as columns in a file of its own, which is as little trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.common import open_files
from data_pipeline.dataset import manifest as module
from data_pipeline.dataset import token_stream
from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SHARDS, SPLITS, DatasetManifest
from data_pipeline.dataset.shard_table import ShardTable, load_tables, save_tables
from data_pipeline.errors import DataError
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.http_store import serve


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The dataset of the fixture `dataset`, with its shards in a table."""
    monkeypatch.setattr(module, "LISTED_MEMBERS", 3)
    return build_dataset(make_documents(0, 200), tmp_path)


def test_it_reads_as_the_dataset_that_lists_its_shards(dataset: Dataset, apart: Dataset) -> None:
    values = json.loads((apart.directory / MANIFEST).read_text())
    assert values["format"] == 2
    assert all("shards" not in split for split in values["splits"].values())
    apart.verify()
    assert apart.identity == dataset.identity
    for split in SPLITS:
        assert list(apart.manifest.splits[split].shards) == list(dataset.manifest.splits[split].shards)
        assert np.array_equal(apart.starts(split), dataset.starts(split))
        whole = apart.num_tokens(split)
        assert np.array_equal(apart.window(split, 0, whole), dataset.window(split, 0, whole))
        for start in range(0, whole - 300, 1 + whole // 7):
            assert apart.documents_at(split, start, 300) == dataset.documents_at(split, start, 300)


def test_a_manifest_of_few_shards_is_what_it_was(dataset: Dataset) -> None:
    values = json.loads((dataset.directory / MANIFEST).read_text())
    assert values["format"] == 1
    assert "shards" not in values
    assert not (dataset.directory / SHARDS).exists()


def test_it_is_read_from_elsewhere(apart: Dataset, tmp_path: Path) -> None:
    with serve(apart.directory) as server:
        remote = Dataset(server.url, Cache(tmp_path / "cache"))
        assert remote.remote
        assert np.array_equal(remote.window("train", 0, 5000), apart.window("train", 0, 5000))


@pytest.mark.parametrize("place", [0, 40, 500, -1])
def test_a_flipped_bit_of_the_table_is_found(apart: Dataset, place: int) -> None:
    path = apart.directory / SHARDS
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"manifest\.json lists its shards in a file that can't be used"):
        Dataset(apart.directory)


def lying(table: ShardTable, **changes: object) -> ShardTable:
    values = {name: getattr(table, name) for name in table.__dataclass_fields__}
    return ShardTable(**{**values, **changes})


def test_tables_that_lie_are_refused(apart: Dataset, tmp_path: Path) -> None:
    table = ShardTable.of(apart.manifest.splits["train"].shards)
    more, fewer = table.tokens.copy(), table.firsts.copy()
    more[0] += 5
    fewer[1] = 0
    lies = {
        "outside": lying(table, names=("../x.tar", *table.names[1:])),
        "a name too few": lying(table, names=table.names[1:]),
        "more tokens": lying(table, tokens=more),
        "negative tokens": lying(table, tokens=-table.tokens),
        "no members": lying(table, firsts=fewer),
        "huge": lying(table, sizes=table.sizes + 2**60),
        "another type": lying(table, offsets=table.offsets.astype(np.float64)),
        "another shape": lying(table, sha256=table.sha256[:, :16]),
    }
    for name, lie in lies.items():
        save_tables(tmp_path / name, [lie])
        with pytest.raises(ValueError, match=r"of it|don't fit|directory|not enough"):
            load_tables(tmp_path / name, 1)
    save_tables(tmp_path / "true", [table])
    assert list(load_tables(tmp_path / "true", 1)[0]) == list(table)
    misplaced = table.offsets.copy()
    misplaced[1] = misplaced[0]
    assert table.misplaced(2) is None
    assert lying(table, offsets=misplaced).misplaced(2) == table.names[0]


@pytest.mark.parametrize("header", [b"|O".ljust(8, b"\0"), b"<i8".ljust(8, b"\0")])
def test_a_file_that_claims_what_is_not_there_is_refused(tmp_path: Path, header: bytes) -> None:
    for counts in ((1, 2**60, 1), (2, -5, 1), (2, 2**40, 2**40)):
        (tmp_path / "table").write_bytes(header + np.array(counts, "<i8").tobytes())
        with pytest.raises(ValueError, match=r"."):
            load_tables(tmp_path / "table", 1)


def test_no_more_shards_are_open_than_a_quarter_of_the_files_that_may_be(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_stream, "open_file_limit", lambda: 8)
    opened = Dataset(dataset.directory)
    before = len(os.listdir("/proc/self/fd"))
    starts = np.arange(0, opened.num_tokens("train") - 20, 97)
    found = opened.read("train", starts, 20)
    assert len(opened.manifest.splits["train"].shards) > 2
    assert len(os.listdir("/proc/self/fd")) - before <= 2
    assert np.array_equal(found, dataset.read("train", starts, 20))
    assert open_files.open_file_limit() > 8


def test_opening_opens_no_shard(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_stream, "mmap", None)
    Dataset(dataset.directory)
    manifest = DatasetManifest.load(dataset.directory)
    assert len(manifest.splits["train"].shards) > 2
