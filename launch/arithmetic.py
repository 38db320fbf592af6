"""A GPT learns two-digit addition, and a report shows how: the whole path, on two cores, within 40 minutes.

    python -m launch.arithmetic [PROBLEMS]

PROBLEMS is GPT-3's own set (two_digit_addition.jsonl of github.com/openai/gpt-3, data/); without it, 2,000 problems are
drawn. The model trains on all others of the 10,000 problems, in GPT-3's form, each in several texts beside other ones;
none of those it is asked is in its training text.
"""

import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

CONFIG = "configs/debug/arithmetic.yaml"
RUN, DATA, BENCHMARKS = Path("runs/arithmetic"), Path("datasets/arithmetic"), Path("datasets/arithmetic-problems")
FILE = "two_digit_addition.jsonl"
ASKED = 2000
_TEXTS, _PROBLEMS = 12_000, 12  # texts, and problems in each
_PROBLEM = re.compile(r"What is (\d+) plus (\d+)\?")

Problem = tuple[int, int]


def main(problems: str | None) -> int:
    """Makes the data, trains, scores every checkpoint."""
    started = time.monotonic()
    asked = _read(Path(problems)) if problems is not None else _drawn()
    BENCHMARKS.mkdir(parents=True, exist_ok=True)
    lines = ({"context": f"\n\nQ: What is {x} plus {y}?\n\nA:", "completion": f" {x + y}"} for x, y in asked)
    (BENCHMARKS / FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = DATA.with_suffix(".jsonl")
    text.write_text("".join(f"{json.dumps({'text': document})}\n" for document in texts(set(asked))))
    settings = [f"input={text}", f"output={DATA}", "tokenizer.type=bytes", "validation_fraction=0.01"]
    _run(["data", "build", "configs/data/text.yaml", *settings])
    _run(["train", CONFIG, f"data.path={DATA}", f"run.dir={RUN}", f"evaluate.data={BENCHMARKS}"])
    tasks = ["--tasks", "arithmetic_2da", "--data", str(BENCHMARKS), "--all-checkpoints"]
    _run(["eval", str(RUN), *tasks, "--out", str(RUN / "reports" / "addition")])
    print(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    return 0


def texts(asked: set[Problem]) -> list[str]:
    """Of problems that are not asked, in GPT-3's form, each solved."""
    draw = random.Random(0)
    known = [(x, y) for x in range(100) for y in range(100) if (x, y) not in asked]
    return [
        "".join(f"\n\nQ: What is {x} plus {y}?\n\nA: {x + y}" for x, y in draw.sample(known, _PROBLEMS))
        for _ in range(_TEXTS)
    ]


def _drawn() -> list[Problem]:
    chosen = random.Random(1).sample(range(100 * 100), ASKED)
    return [divmod(number, 100) for number in chosen]


def _read(path: Path) -> list[Problem]:
    found = [_PROBLEM.search(json.loads(line)["context"]) for line in path.read_text().splitlines()]
    if not found or not all(found):
        sys.exit(f"arithmetic: {path} does not hold problems such as 'What is 98 plus 45?'")
    return [(int(match[1]), int(match[2])) for match in found if match]


def _run(arguments: list[str]) -> None:
    print(f"$ pretrain {shlex.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "pretrain", *arguments]).returncode
    if status != 0:
        sys.exit(f"arithmetic: the command above ended with status {status}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
