"""Tokenizers, and writers of labelled data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.labelled.dataset import LabelledDataset

Write = Callable[..., LabelledDataset]


@pytest.fixture
def write(tmp_path: Path, tokenizer_files: dict[str, Path]) -> Write:
    """Writes rows and opens them. Rows of a split may be text, which is written as it is."""

    def write(
        train: list[Any], validation: list[Any] | None = None, kind: str = "wordpiece", name: str = "set", **more: Any
    ) -> LabelledDataset:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        splits = {"train": train, "validation": train if validation is None else validation, **more}
        for split, rows in splits.items():
            lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
            (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return LabelledDataset(folder, tokenizer_files[kind])

    return write
