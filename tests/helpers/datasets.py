"""Small made-up text, and datasets built from it that have several members and shards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.build.build import build
from data_pipeline.build.config import BuildConfig
from data_pipeline.common.progress import TaskProgress
from data_pipeline.dataset.dataset import Dataset

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


def build_pairs(pairs: list[tuple[str, str]], folder: Path, name: str = "pairs", **changes: Any) -> Dataset:
    text = folder / f"{name}.jsonl"
    text.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in pairs))
    fields = {"pair_fields": ("source", "target"), "tokenizer": {"vocabulary": 300}}
    assert build(settings(input=str(text), output=folder / name, **{**fields, **changes}), Silent)
    return Dataset(folder / name)
