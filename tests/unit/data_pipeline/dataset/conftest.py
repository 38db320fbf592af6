"""A small dataset to damage and a copy of it; a dataset behind HTTP and in memory, and a cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_pipeline.dataset import storage
from data_pipeline.dataset.cache import Cache
from data_pipeline.dataset.dataset import Dataset
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.http_store import HttpStore, serve

LENGTH = 64
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small one, since it is damaged hundreds of times."""
    documents = make_documents(0, 60)
    changes = {"member_tokens": 600, "shard_tokens": 1500, "tokenizer": {"vocabulary": 300}}
    return build_dataset(documents, tmp_path_factory.mktemp("whole"), **changes)


@pytest.fixture
def copy(whole: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.directory, tmp_path / "copy"))


@pytest.fixture
def store(dataset: Dataset, tmp_path: Path) -> Iterator[HttpStore]:
    """The dataset over HTTP, from a copy that can be damaged."""
    with serve(Path(shutil.copytree(dataset.directory, tmp_path / "served"))) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited, without waiting."""
    found: list[float] = []
    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=found.append))
    return found


@pytest.fixture
def in_memory(dataset: Dataset) -> Iterator[str]:
    """The address of a copy in memory."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    for path in dataset.directory.iterdir():
        files.pipe_file(f"/bucket/set/{path.name}", path.read_bytes())
    yield "memory://bucket/set"
    files.rm("/bucket", recursive=True)
