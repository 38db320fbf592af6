"""Labelled rows from Wikipedia: an article's topic follows from its categories, its passage from its prose."""

import json
from pathlib import Path

import pytest

from examples import enwik8, topics
from examples.demo_finetune import table

LONG = "It has a sentence that is repeated until the paragraph is long enough to be a passage. " * 4


def page(number: int, categories: list[str], prose: str) -> str:
    links = "".join(f"[[Category:{name}]]\n" for name in categories)
    text = f"{prose}\n\n{links}"
    return f"<page><title>{number}</title><revision><text>{text}</text></revision></page>\n"


def write(directory: Path, monkeypatch: pytest.MonkeyPatch, pages: list[str]) -> list[dict[str, str]]:
    """The rows of pages that come after the part that a model is trained on."""
    before = page(0, ["Cities in Spain"], f"Read {LONG}\n\nBefore {LONG}").encode()

    def fetch(target: Path, size: int) -> None:
        target.write_bytes(before + "".join(pages).encode())

    monkeypatch.setattr(enwik8, "fetch", fetch)
    monkeypatch.setattr(enwik8, "TEXT_BYTES", len(before))
    topics.write(directory, train_rows=1)
    files = (directory / f"{split}.jsonl" for split in ("train", "validation"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_row_is_a_later_paragraph_of_an_article_with_one_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [
        page(1, ["Cities in Italy"], f"One is a city. {LONG}\n\nFirst {LONG}"),
        page(2, ["1900 births", "American films"], f"Two was born. {LONG}\n\nSecond {LONG}"),
        page(3, ["Cities in Italy", "Computers"], f"Three is two topics. {LONG}\n\nThird {LONG}"),
        page(4, ["Nothing known"], f"Four has no topic. {LONG}\n\nFourth {LONG}"),
        page(5, ["Computers"], f"Five has an introduction alone. {LONG}"),
    ]
    rows = write(tmp_path / "rows", monkeypatch, pages)
    assert {row["text"].split()[0]: row["label"] for row in rows} == {"First": "place", "Second": "person"}
    assert all(200 <= len(row["text"]) <= 300 and not row["text"].endswith(" ") for row in rows)
    again = write(tmp_path / "again", monkeypatch, pages[::-1])
    assert again == rows, "the order follows from the texts"


def test_a_margin_is_that_of_each_seed() -> None:
    lines = [line.split() for line in table({"pretrained": [0.5, 0.7], "random": [0.4, 0.5]})]
    assert lines[1:] == [
        ["pretrained", "60.0%", "14.1%", "50.0%", "70.0%"],
        ["random", "45.0%", "7.1%", "40.0%", "50.0%"],
        ["margin", "15.0%", "7.1%", "10.0%", "20.0%"],
    ]
