"""Trains a GPT on two-digit addition, from data to a report of its scores by step; takes 40 minutes on two cores.

    python -m examples.arithmetic [PROBLEMS]

PROBLEMS is GPT-3's test set (two_digit_addition.jsonl in data/ of github.com/openai/gpt-3); without it, 2,000 problems
are drawn. The model trains on the other problems of the 10,000, in GPT-3's form, each in several texts together with
other problems; no test problem is in its training text. Each digit is a token.
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

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pretrain.run_dir.paths import RunDir

CONFIG = "configs/debug/arithmetic.yaml"
RUN, DATA, BENCHMARKS = Path("runs/arithmetic"), Path("datasets/arithmetic"), Path("datasets/arithmetic-problems")
FILE = "two_digit_addition.jsonl"
TEST_PROBLEMS = 2000
_TEXTS, _PROBLEMS = 20_000, 12  # number of texts, and of problems in each
_VOCABULARY = 300  # 256 bytes, the few words, and an end of text
_PROBLEM = re.compile(r"What is (\d+) plus (\d+)\?")

Problem = tuple[int, int]


def main(problems: str | None) -> int:
    """Makes the data, trains, and scores every checkpoint. Returns the exit status."""
    started = time.monotonic()
    test_problems = _read(Path(problems)) if problems is not None else _drawn()
    BENCHMARKS.mkdir(parents=True, exist_ok=True)
    lines = ({"context": f"\n\nQ: What is {x} plus {y}?\n\nA:", "completion": f" {x + y}"} for x, y in test_problems)
    (BENCHMARKS / FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = DATA.with_suffix(".jsonl")
    text.write_text("".join(f"{json.dumps({'text': document})}\n" for document in texts(set(test_problems))))
    tokenizer = DATA.with_suffix(".tokenizer.json")
    _tokenizer().save(str(tokenizer))
    settings = [f"input={text}", f"output={DATA}", f"tokenizer.path={tokenizer}", "validation_fraction=0.01"]
    _run(["data", "build", "configs/data/text.yaml", *settings])
    _run(["train", CONFIG, f"data.path={DATA}", f"run.dir={RUN}", f"evaluate.data={BENCHMARKS}", "--nproc", "2"])
    tasks = ["--tasks", "arithmetic_2da", "--data", str(BENCHMARKS), "--all-checkpoints"]
    _run(["eval", str(RUN), *tasks, "--out", str(RunDir(RUN).reports / "addition")])
    print(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    return 0


def texts(test_problems: set[Problem]) -> list[str]:
    """Training texts: solved problems in GPT-3's form, none of them in `test_problems`."""
    draw = random.Random(0)
    known = [(x, y) for x in range(100) for y in range(100) if (x, y) not in test_problems]
    return [
        "".join(f"\n\nQ: What is {x} plus {y}?\n\nA: {x + y}" for x, y in draw.sample(known, _PROBLEMS))
        for _ in range(_TEXTS)
    ]


def _tokenizer() -> Tokenizer:
    """Tokenizer whose tokens are words, with the space before them, and single digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| (?=\d)|[^\d ]+| [^\d ]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(["\n\nQ: What is 98 plus 45?\n\nA: 143"] * 10, trainer)
    return tokenizer


def _drawn() -> list[Problem]:
    chosen = random.Random(1).sample(range(100 * 100), TEST_PROBLEMS)
    return [divmod(number, 100) for number in chosen]


def _read(path: Path) -> list[Problem]:
    matches = [_PROBLEM.search(json.loads(line)["context"]) for line in path.read_text().splitlines()]
    if not matches or not all(matches):
        sys.exit(f"arithmetic: {path} holds lines without a problem such as 'What is 98 plus 45?': give GPT-3's file")
    return [(int(match[1]), int(match[2])) for match in matches if match]


def _run(arguments: list[str]) -> None:
    print(f"$ pretrain {shlex.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "pretrain", *arguments]).returncode
    if status != 0:
        sys.exit(f"arithmetic: the command above failed with status {status}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
