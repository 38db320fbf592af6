"""Words and the same words backwards, as pairs for configs/debug/reversal.yaml, which has the commands that follow.

python -m examples.reversal [DIRECTORY]
"""

import json
import random
import sys
from pathlib import Path

_PAIRS = {"train.jsonl": 20_000, "validation.jsonl": 200}
_LETTERS, _SHORTEST, _LONGEST = "abcdefghijklmnopqrstuvwxyz", 3, 10


def main(directory: Path) -> int:
    """Writes both files. Returns the exit status."""
    directory.mkdir(parents=True, exist_ok=True)
    draw, seen = random.Random(0), set[str]()
    for name, count in _PAIRS.items():
        lines = list[str]()
        while len(lines) < count:
            word = "".join(draw.choices(_LETTERS, k=draw.randint(_SHORTEST, _LONGEST)))
            if word not in seen:  # no word is in both files
                seen.add(word)
                lines.append(json.dumps({"source": word, "target": word[::-1]}) + "\n")
        (directory / name).write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2]) if len(sys.argv) > 1 else Path("datasets/reversal")))
