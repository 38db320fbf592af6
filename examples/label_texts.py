"""Training text for the task `arbitrary_labels`, which a GPT of a million parameters learns within `make demo`:

    python -m examples.label_texts datasets/label-texts.jsonl

Its questions are not in this text: data_pipeline/text/label_lines.py keeps them apart.
"""

import json
import sys
from pathlib import Path

from data_pipeline.text.label_lines import training_texts

TEXTS = 4000  # about a million tokens


def write(target: Path, count: int = TEXTS) -> None:
    """Writes the first `count` texts to `target`, one JSON line each; the same on every machine."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text("".join(f"{json.dumps({'text': text})}\n" for text in training_texts(count)))
    temporary.rename(target)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
