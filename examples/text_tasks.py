"""Three small tasks as text to text, for docs/multitask.md:

    python -m examples.text_tasks datasets/tasks

Each is a directory of train.jsonl and validation.jsonl with rows of {"input": ..., "target": ...}: `sum` adds two
numbers, `largest` finds the largest of four, `last` repeats the last word of a sentence. No validation row is among the
training rows, and the files are the same on every machine. The sizes differ, as those of real tasks do.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

SIZES = {"sum": 4000, "largest": 2000, "last": 1000}
VALIDATION = 100
_WORDS = ("time", "year", "people", "way", "day", "thing", "life", "child", "world", "school", "family", "group")

Row = tuple[str, str]


def _sum(draw: random.Random) -> Row:
    one, other = draw.randrange(100), draw.randrange(100)
    return f"{one} and {other}", str(one + other)


def _largest(draw: random.Random) -> Row:
    numbers = [draw.randrange(1000) for _ in range(4)]
    return " ".join(map(str, numbers)), str(max(numbers))


def _last(draw: random.Random) -> Row:
    words = [draw.choice(_WORDS) for _ in range(draw.randint(3, 8))]
    return " ".join(words), words[-1]


_TASKS: dict[str, Callable[[random.Random], Row]] = {"sum": _sum, "largest": _largest, "last": _last}


def main(folder: Path) -> int:
    """Writes the tasks. Returns the exit status."""
    for name, size in SIZES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = distinct_rows(name, size + VALIDATION)
        for split, some in (("validation", rows[:VALIDATION]), ("train", rows[VALIDATION:])):
            lines = (json.dumps({"input": text, "target": target}) + "\n" for text, target in some)
            (folder / name / f"{split}.jsonl").write_text("".join(lines))
        print(f"{folder / name}: {size:,} rows to train on, {VALIDATION} held out")
    return 0


def distinct_rows(name: str, count: int) -> list[Row]:
    """`count` rows of a task, no two with one input."""
    draw, rows = random.Random(name), dict[str, str]()
    while len(rows) < count:
        text, target = _TASKS[name](draw)
        rows.setdefault(text, target)
    return list(rows.items())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
