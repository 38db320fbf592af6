"""News articles with their summaries, for docs/summaries.md: files to pretrain and fine-tune on, and the score of each
article's first three sentences.

    python -m examples.news cnn_validation.json datasets/news

The file is a JSON list of {"input": article, "output": highlights}: the validation split of CNN/DailyMail as the source
archive of intel-extension-for-transformers 1.4.2 has it. `articles.jsonl` and `rows/train.jsonl` are of the same
articles; those of `rows/validation.jsonl` are in neither.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pretrain.evaluate.rouge import KINDS, rouge

HELD_OUT = 64
"""One article of so many is held out."""
_SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')]))\s+(?=[\"'(]*[A-Z0-9])")


def main(source: Path, folder: Path) -> int:
    """Writes the files and prints the scores. Returns the exit status."""
    rows = [{"input": row["input"], "target": row["output"]} for row in json.loads(source.read_text())]
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    held_out, train = rows[::HELD_OUT], [row for number, row in enumerate(rows) if number % HELD_OUT]
    _write(folder / "articles.jsonl", [{"text": row["input"]} for row in train])
    _write(folder / "rows" / "train.jsonl", train)
    _write(folder / "rows" / "validation.jsonl", held_out)
    print(f"{folder}: {len(train):,} articles to train on, {len(held_out):,} held out")
    for kind, score in scores([lead(row["input"]) for row in held_out], [row["target"] for row in held_out]).items():
        print(f"first three sentences: {kind} {score:.4f}")
    return 0


def lead(article: str, sentences: int = 3) -> str:
    """The first sentences of an article, each on a line."""
    return "\n".join(_SENTENCE_END.split(article.strip(), sentences)[:sentences])


def scores(summaries: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean F1 of each kind of ROUGE, of stemmed words, from 0 to 1."""
    return {kind: float(rouge(kind, summaries, [[one] for one in references]).mean()) for kind in KINDS}


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
