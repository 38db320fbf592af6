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
from pathlib import Path

from tests.benchmarks.swept import best_rate, held_out_loss, shown

STEPS, SHARE = 400, 0.8
SEEDS = (1, 2, 3)
FIRST_RATE = {"adamw": 4e-3, "muon": 8e-3}
MODEL = ["model.layers=3", "model.hidden=96", "model.heads=4", "model.head_dim=24", "model.init.std=0.02"]
LENGTH = ["batch.sequences=8", "batch.micro_sequences=8", "schedule.name=cosine", "schedule.warmup_steps=40"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()

    def loss(optimizer: str, rate: float, steps: int, seed: int) -> float:
        settings = [f"data.path={arguments.data}", f"optimizer.name={optimizer}", "evaluate.sequences=512"]
        run = (optimizer, rate, steps, seed)
        return held_out_loss(arguments.folder, run, "debug/ladder", [*settings, *MODEL, *LENGTH])

    rows = []
    for optimizer, steps in (("adamw", STEPS), ("muon", round(SHARE * STEPS))):
        rate = best_rate(FIRST_RATE[optimizer], lambda rate: loss(optimizer, rate, steps, SEEDS[0]))  # noqa: B023
        losses = [loss(optimizer, rate, steps, seed) for seed in SEEDS]
        rows.append((optimizer, steps, rate, losses))
    for optimizer, steps, rate, losses in rows:
        print(f"{optimizer:6} {steps} steps at {rate:g}: {shown(losses)}")


if __name__ == "__main__":
    main()
