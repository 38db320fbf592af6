"""Input of builds."""

import json
from pathlib import Path

import pytest

from tests.helpers.datasets import make_documents


def write(folder: Path, files: dict[str, list[str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, texts in files.items():
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = make_documents(0, 240)
    return write(tmp_path / "in", {"a.jsonl": texts[:150], "b.jsonl": texts[150:180], "c.jsonl": texts[180:]})
