"""Labelled rows from Wikipedia: a passage of an article, and the topic that the article's categories name.

    python -m examples.topics datasets/topics

The articles come after the part of enwik8 that `make demo` trains on (examples/enwik8.py), so that a model that was
trained on that part has read none of them. An article whose categories name no topic, or several, gives no row. Its
passage is one paragraph after the introduction, which would name the topic.
"""

import hashlib
import html
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.reading import wikitext
from examples import enwik8

END_BYTES = 40_000_000
"""Length of the part of enwik8 that is read; its beginning is skipped."""
TRAIN_ROWS = 240
_SHORTEST, _LONGEST = 200, 300  # characters of a passage
_TOPICS = {
    "person": r"births|deaths|people|monarchs|emperors|saints",
    "place": r"cit(y|ies)|towns|islands?|capitals|countr(y|ies)|geography|counties|rivers|mountains|states of",
    "science": r"chemi|physic|biolog|astronom|geolog|mathemati|algebra|theory|elements|medic|disease|species|mammals|"
    r"birds|plants|constellations|statistics",
    "technology": r"comput|software|program|vehicles|aircraft|technolog|engineering|weapons|spacecraft|internet",
    "art": r"films?\b|television|music|novels|albums|songs|literature|fiction|painting|theatre|comics|poetry",
    "religion": r"christian|testament|bible|religio|islam|juda|jewish|mytholog|hindu|buddh|church|theolog",
}
LABELS = tuple(_TOPICS)
_CATEGORY = re.compile(r"\[\[Category:([^\]|]+)")
_PAGE = re.compile(rb"<page>.*?<text[^>]*>(.*?)</text>", re.S)


def write(directory: Path, train_rows: int = TRAIN_ROWS) -> dict[str, int]:
    """Writes train.jsonl and validation.jsonl. Returns how many rows each has. The same text gives the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "enwik8.xml"
        enwik8.fetch(text, END_BYTES)
        rows = list(_rows(text.read_bytes()[enwik8.TEXT_BYTES :]))
    rows.sort(key=lambda row: hashlib.sha256(row["text"].encode()).digest())  # an order without a pattern
    directory.mkdir(parents=True, exist_ok=True)
    splits = {"train": rows[:train_rows], "validation": rows[train_rows:]}
    for split, of_split in splits.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in of_split)
        (directory / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return {split: len(of_split) for split, of_split in splits.items()}


def _rows(content: bytes) -> Iterator[dict[str, str]]:
    for match in _PAGE.finditer(content):
        markup = html.unescape(match[1].decode("utf-8"))
        topic = _topic([name.lower() for name in _CATEGORY.findall(markup)])
        passage = _passage(wikitext.plain(markup)) if topic else None
        if topic and passage:
            yield {"text": passage, "label": topic}


def _topic(categories: list[str]) -> str | None:
    """The only topic that the categories name. Whoever was born is a person, whatever else."""
    named = [
        topic for topic, pattern in _TOPICS.items() if any(re.search(rf"\b({pattern})", name) for name in categories)
    ]
    if named[:1] == ["person"]:
        return "person"
    return named[0] if len(named) == 1 else None


def _passage(prose: str) -> str | None:
    """The first long paragraph after the introduction's first, cut at a word."""
    long = [" ".join(one.split()) for one in prose.split("\n\n") if len(one) >= _SHORTEST]
    if len(long) < 2:
        return None
    return long[1] if len(long[1]) <= _LONGEST else long[1][:_LONGEST].rpartition(" ")[0]


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
