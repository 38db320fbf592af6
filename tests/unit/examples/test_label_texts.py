"""The text that the demo adds to the encyclopedia."""

import json
from pathlib import Path

import pytest

from data_pipeline.build.config import BuildConfig
from data_pipeline.text.label_lines import training_texts
from examples import demo, label_texts


def test_the_file_holds_the_training_texts(tmp_path: Path) -> None:
    first, second = tmp_path / "new" / "first.jsonl", tmp_path / "second.jsonl"
    for path in (first, second):
        label_texts.write(path, 20)
    assert first.read_bytes() == second.read_bytes()
    assert [json.loads(line)["text"] for line in first.read_text().splitlines()] == list(training_texts(20))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "second.jsonl"]


def test_the_demo_builds_both_texts_with_their_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = BuildConfig.model_validate({"sources": json.loads(demo._sources("my book.txt")), "output": "x"}).sources
    assert [(source.input, source.weight) for source in sources] == [
        ("my book.txt", 1 - demo.LABEL_SHARE),
        (str(demo.LABEL_TEXTS), demo.LABEL_SHARE),
    ]
    monkeypatch.chdir(tmp_path)
    book = tmp_path / "book.txt"
    book.write_text("text")
    label_texts.write(demo.LABEL_TEXTS, 5)
    before = demo._dataset_directory(book)
    assert demo._dataset_directory(book) == before
    label_texts.write(demo.LABEL_TEXTS, 6)
    assert demo._dataset_directory(book) != before, "other lines make another dataset"
