"""Muon against AdamW on enwik8: the loss of each at its best learning rate, Muon with fewer steps.

    python -m examples.enwik8 datasets/enwik8.xml
    pretrain data build data/text input=datasets/enwik8.xml output=datasets/enwik8 \
        tokenizer.vocabulary=1024 validation_fraction=0.03
    python -m tests.benchmarks.optimizers datasets/enwik8 runs/optimizers

Learning rates are swept with the first seed, by factors of 2, until the best one is between two others; then the best
is repeated with the other seeds. Each run has a cosine schedule of its own length. Runs that are done are not repeated.
It takes about 15 minutes of a processor.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

STEPS, SHARE = 400, 0.8
SEEDS = (1, 2, 3)
FIRST_RATE = {"adamw": 4e-3, "muon": 8e-3}
MODEL = ["model.layers=3", "model.hidden=96", "model.heads=4", "model.head_dim=24", "model.init.std=0.02"]
LENGTH = ["batch.sequences=8", "batch.micro_sequences=8", "schedule.name=cosine", "schedule.warmup_steps=40"]

Run = tuple[str, float, int, int]
"""optimizer, learning rate, steps, seed"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()

    def loss(optimizer: str, rate: float, steps: int, seed: int) -> float:
        return _held_out_loss(arguments.data, arguments.folder, (optimizer, rate, steps, seed))

    rows = []
    for optimizer, steps in (("adamw", STEPS), ("muon", round(SHARE * STEPS))):
        rate = best_rate(FIRST_RATE[optimizer], lambda rate: loss(optimizer, rate, steps, SEEDS[0]))  # noqa: B023
        losses = [loss(optimizer, rate, steps, seed) for seed in SEEDS]
        rows.append((optimizer, steps, rate, losses))
    for optimizer, steps, rate, losses in rows:
        spread = f"{mean(losses):.4f} +- {stdev(losses):.4f}"
        print(f"{optimizer:6} {steps} steps at {rate:g}: {spread} ({', '.join(f'{one:.4f}' for one in losses)})")


def best_rate(first: float, loss: Callable[[float], float]) -> float:
    """The rate of the least loss, among `first` times powers of 2, between two that are worse."""
    losses = {rate: loss(rate) for rate in (first / 2, first, first * 2)}
    while (best := min(losses, key=losses.__getitem__)) in (min(losses), max(losses)):
        further = best / 2 if best == min(losses) else best * 2
        losses[further] = loss(further)
    return best


def _held_out_loss(data: Path, folder: Path, run: Run) -> float:
    """Returns the loss of a run from results.jsonl, or trains it and appends the loss there."""
    optimizer, rate, steps, seed = run
    results = folder / "results.jsonl"
    known = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for one in known:
        if one["run"] == list(run):
            return float(one["loss"])
    name = f"{optimizer}-{rate:g}-{steps}-{seed}"
    settings = [
        f"run.dir={folder / name}", f"run.seed={seed}", f"data.path={data}", f"train.steps={steps}",
        f"optimizer.name={optimizer}", f"optimizer.learning_rate={rate:g}", "evaluate.sequences=512",
        f"schedule.decay_steps={steps}", *MODEL, *LENGTH,
    ]  # fmt: skip
    command = [sys.executable, "-m", "pretrain", "train", "debug/ladder", *settings]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("finished:")]
    loss = float(line.split("held-out loss ")[1].split(",")[0])
    folder.mkdir(parents=True, exist_ok=True)
    with results.open("a") as lines:
        lines.write(json.dumps({"run": run, "loss": loss}) + "\n")
    print(f"{name}: {loss:.4f}", flush=True)
    return loss


if __name__ == "__main__":
    main()
