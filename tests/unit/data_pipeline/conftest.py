"""Small made-up text, and datasets built from it that have several members and shards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.common.progress import TaskProgress
from data_pipeline.dataset.dataset import Dataset
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import train_tokenizer

Build = Callable[..., Dataset]
ODD = [
    "", " ", "  a  b   ", "\n", "\n\n a\n\tb\r\n\r", "\x00a\x00", "\x7f\x1b[0m",
    "\u2581", " \u2581\u2581 x\u2581", "a\u2581 b", "\u00a0\u2028\u3000x", "\ufeffx", "\ufffd", "\u2047",
    "e\u0301 \u00e9", "ﬁ ①Ⅷ", "👩\u200d👩\u200d👧 🇩🇪", "مرحبا שלום", "中文字。", "\U0010ffff\ue000",
    "<|endoftext|>", "<unk>", "<s></s>", "<0x0A>", "\\n",
]  # fmt: skip


class Silent(TaskProgress):
    def add(self, tasks: int, size: int, new: bool = True) -> None:
        pass

    def done(self) -> None:
        pass


def make_documents(seed: int, count: int) -> list[str]:
    """Documents of a few hundred characters, in words of a made-up language with accents."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("abdeéiklmnoprstuü") for _ in range(draw.randint(1, 8))) for _ in range(500)]
    return [
        " ".join(words[int(draw.paretovariate(0.6)) % 500] for _ in range(draw.randint(1, 120))) + f".\n{i}\n"
        for i in range(count)
    ]


def settings(**changes: Any) -> BuildConfig:
    values: dict[str, Any] = {
        "tokenizer": {"vocabulary": 400},
        "txt_documents": "paragraph",
        "validation_fraction": 0.1,
        "member_tokens": 1000,
        "shard_tokens": 5000,
    }
    return BuildConfig(**{**values, **changes})


def build_dataset(documents: list[str], folder: Path, name: str = "set", **changes: Any) -> Dataset:
    text = folder / f"{name}.txt"
    text.write_text("\n\n".join(documents))
    assert build(settings(input=str(text), output=folder / name, **changes), Silent)
    return Dataset(folder / name)


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

    def spy(texts: list[str], *others: Any) -> Tokenizer:
        seen.extend(texts)
        return train_tokenizer(texts, *others)

    monkeypatch.setattr("data_pipeline.build.vocabulary.train_tokenizer", spy)
    return seen


@pytest.fixture(scope="session")
def real_text() -> Path:
    """A folder of English text, where the workplace has one beside the repository."""
    folder = Path(__file__).parents[4] / "shared" / "data" / "text"
    if not folder.is_dir():
        pytest.skip("no folder of real text beside the repository")
    return folder


def build_pairs(pairs: list[tuple[str, str]], folder: Path, name: str = "pairs", **changes: Any) -> Dataset:
    text = folder / f"{name}.jsonl"
    text.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in pairs))
    fields = {"pair_fields": ("source", "target"), "tokenizer": {"vocabulary": 300}}
    assert build(settings(input=str(text), output=folder / name, **{**fields, **changes}), Silent)
    return Dataset(folder / name)
