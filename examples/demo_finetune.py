"""`make demo-finetune`: from raw text to a classifier, and what pretraining adds to it, by the real commands.

    python -m examples.demo_finetune

A GPT trains on the text of `make demo`, a part of English Wikipedia. It is then fine-tuned to name the topic of
passages from articles that it has not read (examples/topics.py): once with its weights and once with random ones, on
the same rows, for the same steps, with five seeds. Called again after a stop, it resumes.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev

from examples import enwik8, topics
from pretrain.run_dir.paths import RunDir

TEXT, ROWS, DATASET = Path("datasets/enwik8.xml"), Path("datasets/topics"), Path("datasets/wiki")
RUN, CLASSIFIERS = Path("runs/wiki"), Path("runs/topics")
SEEDS = (1, 2, 3, 4, 5)
WEIGHTS = {"pretrained": "checkpoint", "random": "random"}


def main() -> int:
    started = time.monotonic()
    _title("Text: the first 12 MB of English Wikipedia as of 2006 (enwik8)")
    enwik8.fetch(TEXT)
    print(f"{TEXT}: {TEXT.stat().st_size:,} bytes")
    _title("Rows: passages of articles that come later, with their topics")
    counts = topics.write(ROWS)
    print(f"{ROWS}: " + ", ".join(f"{count} {split} rows" for split, count in counts.items()) + ", such as")
    print((ROWS / "train.jsonl").read_text(encoding="utf-8").partition("\n")[0])

    _title("1. Text -> tokenizer -> shards")
    settings = ["tokenizer.vocabulary=4096", "validation_fraction=0.02"]
    _run(["data", "build", "data/bert", f"input={TEXT}", f"output={DATASET}", *settings])

    _title("2. Pretrain a GPT")
    _run(["train", "debug/topics", f"data.path={DATASET}", f"run.dir={RUN}"])

    for start, weights in WEIGHTS.items():
        _title(f"3. Fine-tune it from {start} weights, with {len(SEEDS)} seeds")
        seeds = ["--seeds", ",".join(map(str, SEEDS))]
        settings = [f"data.path={ROWS}", f"run.dir={CLASSIFIERS / start}", f"finetune.weights={weights}"]
        _run(["finetune", str(RUN), "finetune/topics", *settings, *seeds])

    _title(f"Done in {(time.monotonic() - started) / 60:.0f} minutes")
    for line in table({start: _accuracies(CLASSIFIERS / start) for start in WEIGHTS}):
        print(line)
    return 0


def table(accuracies: dict[str, list[float]]) -> list[str]:
    """Accuracies of the seeds by the weights they began with, and how far those of each seed are apart."""
    ours, theirs = accuracies.values()
    margins = [one - other for one, other in zip(ours, theirs, strict=True)]
    lines = [f"{'accuracy':<12}{'mean':>8}{'std':>8}{'lowest':>9}{'highest':>9}"]
    for name, values in {**accuracies, "margin": margins}.items():
        lines.append(f"{name:<12}{mean(values):>8.1%}{stdev(values):>8.1%}{min(values):>9.1%}{max(values):>9.1%}")
    return lines


def _accuracies(directory: Path) -> list[float]:
    reports = (RunDir(directory / f"seed-{seed}").finetune_report / "report.json" for seed in SEEDS)
    splits = [json.loads(path.read_text(encoding="utf-8"))["splits"] for path in reports]
    return [of_run["validation"]["figures"]["accuracy"] for of_run in splits]


def _run(arguments: list[str]) -> None:
    print(f"$ pretrain {shlex.join(arguments)}", flush=True)
    status = subprocess.run([sys.executable, "-m", "pretrain", *arguments]).returncode
    if status != 0:
        sys.exit(f"demo-finetune: the command above ended with status {status}")


def _title(text: str) -> None:
    print(f"\n=== {text}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # on the CPU also where there are GPUs
    sys.exit(main())
