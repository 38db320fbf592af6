"""Datasets that several tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from tests.helpers.datasets import build_dataset, make_documents

KINDS = {"wordpiece": 400, "byte_bpe": 400, "unigram": 300, "bpe": 300, "bytes": 259}


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer's file of each kind."""
    folder, files = tmp_path_factory.mktemp("tokenizers"), {}
    for kind, size in KINDS.items():
        tokenizer = train_tokenizer(make_documents(0, 100), kind, size)  # type: ignore[arg-type]
        files[kind] = folder / f"{kind}-{tokenizer.file_name}"
        tokenizer.save(files[kind])
    return files


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """About 200 documents, 4 shards of training text. Read only."""
    return build_dataset(make_documents(0, 200), tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="session")
def second(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Other text with the tokenizer of `dataset`. Read only."""
    tokenizer = {"path": dataset.directory / dataset.manifest.tokenizer.file}
    return build_dataset(make_documents(1, 60), tmp_path_factory.mktemp("second"), tokenizer=tokenizer)


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with the texts that tokenizers are trained on."""
    seen: list[str] = []

    def spy(texts: list[str], *others: Any, **options: Any) -> Tokenizer:
        seen.extend(texts)
        return train_tokenizer(texts, *others, **options)

    monkeypatch.setattr("data_pipeline.build.tokenizer.train_tokenizer", spy)
    return seen


@pytest.fixture(scope="session")
def real_text() -> Path:
    """A folder of English text, where the workplace has one beside the repository."""
    folder = Path(__file__).parents[4] / "shared" / "data" / "text"
    if not folder.is_dir():
        pytest.skip("no folder of real text beside the repository")
    return folder
