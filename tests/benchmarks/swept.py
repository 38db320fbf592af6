"""Training runs that a benchmark compares by their held-out losses, each at the best of swept learning rates. Runs that
are done are recorded in FOLDER/results.jsonl and not repeated."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

Run = tuple[str, float, int, int]
"""what is compared, learning rate, steps, seed"""


def best_rate(first: float, loss: Callable[[float], float]) -> float:
    """The rate of the least loss, among `first` times powers of 2, between two that are worse."""
    losses = {rate: loss(rate) for rate in (first / 2, first, first * 2)}
    while (best := min(losses, key=losses.__getitem__)) in (min(losses), max(losses)):
        further = best / 2 if best == min(losses) else best * 2
        losses[further] = loss(further)
    return best


def held_out_loss(folder: Path, run: Run, config: str, settings: Sequence[str]) -> float:
    """The held-out loss of a run: the recorded one, or it trains `config` with these settings and those of `run`."""
    results = folder / "results.jsonl"
    known = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for one in known:
        if one["run"] == list(run):
            return float(one["loss"])
    what, rate, steps, seed = run
    name = f"{what}-{rate:g}-{steps}-{seed}"
    of_run = [
        f"run.dir={folder / name}", f"run.seed={seed}", f"train.steps={steps}", f"schedule.decay_steps={steps}",
        f"optimizer.learning_rate={rate:g}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "pretrain", "train", config, *of_run, *settings]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("finished:")]
    loss = float(line.split("held-out loss ")[1].split(",")[0])
    folder.mkdir(parents=True, exist_ok=True)
    with results.open("a") as lines:
        lines.write(json.dumps({"run": run, "loss": loss}) + "\n")
    print(f"{name}: {loss:.4f}", flush=True)
    return loss


def shown(losses: Sequence[float]) -> str:
    """Mean, standard deviation and each loss; of one, that loss."""
    if len(losses) == 1:
        return f"{losses[0]:.4f}"
    return f"{mean(losses):.4f} +- {stdev(losses):.4f} ({', '.join(f'{one:.4f}' for one in losses)})"
