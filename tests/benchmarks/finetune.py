"""Tasks of GLUE: fine-tuning by `pretrain finetune` against the Trainer of transformers, from the same weights.

    pip install accelerate                                       # which Trainer needs
    python -m tests.benchmarks.finetune MODEL DATA OUT [--tasks cola sst2] [--seeds 1 2 3 4 5]

MODEL is a directory that save_pretrained wrote; DATA has a directory for each task, as `pretrain finetune fetch` writes
it. Each run is a command of its own, which trains, answers all validation rows and saves the model; ours and theirs
alternate. Theirs is what the example script run_glue.py does: AutoModelForSequenceClassification, Trainer with its
defaults (fused AdamW without decay, gradients clipped to 1, a linear schedule without warm-up), and batches padded to
their longest row. Both have the same rows, batches of 16, learning rate, epochs and scores; seeds and the orders of the
rows are their own. Runs are recorded in OUT/runs.jsonl, and are not repeated.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from pretrain.finetune.metrics import MetricContext, compute_metric
from pretrain.finetune.sets.registry import published_set
from pretrain.run_dir.paths import RunDir

BATCH = 16
MICRO = 8
"""rows of one of our micro-batches: rows of like lengths, each micro-batch padded to its own longest"""
LENGTH = 128
_SIDES = ("theirs", "ours")
_ROWS_SEED = 0
Side = Literal["ours", "theirs"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of GLUE, and how it is trained here."""

    figure: str
    rows: int
    """training rows, drawn once from all"""
    epochs: int = 1
    learning_rate: float = 2e-4

    @property
    def steps(self) -> int:
        return -(-self.rows // BATCH) * self.epochs


TASKS = {
    "sst2": Task(figure="accuracy", rows=768),
    "cola": Task(figure="matthews", rows=2048),
    "stsb": Task(figure="pearson", rows=768),
    "mrpc": Task(figure="f1", rows=768),
    "rte": Task(figure="accuracy", rows=480),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--sides", nargs="+", choices=_SIDES, default=list(_SIDES))
    parser.add_argument("--trainer", nargs=2, metavar=("TASK", "SEED"), help="One run of theirs, in this process.")
    options = parser.parse_args()
    if options.trainer is not None:
        _train_theirs(options.model, options.out, options.trainer[0], int(options.trainer[1]))
        return
    start = options.out / "start"
    if not start.exists():
        _pretrain(["import", "hf", str(options.model), "--out", str(start)], options.out / "import.log")
    for name in options.tasks:
        _choose_rows(options.data / name, options.out / name / "data", TASKS[name].rows)
        for seed in options.seeds:
            for side in options.sides:
                _measure(options, name, seed, side)
    _print_table(options)


def _choose_rows(source: Path, target: Path, rows: int) -> None:
    """Writes the training rows of a task, in their order, and all validation rows."""
    if target.exists():
        return
    target.mkdir(parents=True)
    lines = (source / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = sorted(random.Random(_ROWS_SEED).sample(range(len(lines)), min(rows, len(lines))))
    (target / "train.jsonl").write_text("".join(lines[number] for number in chosen), encoding="utf-8")
    shutil.copy(source / "validation.jsonl", target / "validation.jsonl")


def _measure(options: argparse.Namespace, name: str, seed: int, side: Side) -> None:
    """Makes and records a run that is not recorded."""
    record = options.out / "runs.jsonl"
    if any((one["task"], one["seed"], one["side"]) == (name, seed, side) for one in _runs(record)):
        return
    directory = options.out / name / f"{side}-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    log = directory.with_suffix(".log")
    before = _children_s()
    if side == "ours":
        _pretrain(_our_arguments(options.out, name, seed, directory), log)
        report = json.loads((RunDir(directory).finetune_report / "report.json").read_text(encoding="utf-8"))
        figures = report["splits"]["validation"]["figures"]
    else:
        arguments = [str(options.model), str(options.data), str(options.out), "--trainer", name, str(seed)]
        _run([sys.executable, "-m", "tests.benchmarks.finetune", *arguments], log)
        figures = json.loads((directory / "figures.json").read_text(encoding="utf-8"))
    seconds = _children_s() - before
    shutil.rmtree(directory)  # its weights
    line = {"task": name, "seed": seed, "side": side, "seconds": round(seconds, 2), "figures": figures}
    with record.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def _our_arguments(out: Path, name: str, seed: int, directory: Path) -> list[str]:
    task, published = TASKS[name], published_set(name)
    steps = task.steps
    objective = {"name": published.objective, "sequence_length": LENGTH, **published.settings}
    if published.labels:
        objective["labels"] = list(published.labels)
    settings: dict[str, Any] = {
        "run": {"name": name, "dir": str(directory), "seed": seed},
        "train": {"epochs": task.epochs},
        "batch": {"sequences": BATCH, "micro_sequences": MICRO},
        "data": {"path": str(out / name / "data")},
        "objective": objective,
        "optimizer": {
            "learning_rate": task.learning_rate * (steps + 1) / steps,
            "beta2": 0.999,
            "eps": 1e-8,
            "weight_decay": 0.0,
        },
        "schedule": {"name": "linear", "final_fraction": 0.0, "decay_steps": steps + 1},
        "evaluate": {"every_steps": 0, "figures": _figures(task)},
        "track": {"mlflow": False},
    }
    config = out / name / f"ours-{seed}.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML
    return ["finetune", str(out / "start"), str(config)]


def _figures(task: Task) -> list[str]:
    return list(dict.fromkeys([task.figure, *(["pearson", "spearman"] if task.figure == "pearson" else ["accuracy"])]))


def _train_theirs(model: Path, out: Path, name: str, seed: int) -> None:
    """What run_glue.py does. Writes the figures of the validation rows."""
    import numpy as np
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    task, published, directory = TASKS[name], published_set(name), out / name / f"theirs-{seed}"
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    labels = list(published.labels)
    hf_model = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(labels) or 1)

    def rows_of(split: str) -> list[dict[str, Any]]:
        lines = (out / name / "data" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        pairs = [row["pair"] for row in rows] if "pair" in rows[0] else None
        encoded = tokenizer([row["text"] for row in rows], pairs, truncation=True, max_length=LENGTH)
        answers = [labels.index(row["label"]) if labels else row["label"] for row in rows]
        return [
            {key: encoded[key][number] for key in encoded} | {"labels": answer} for number, answer in enumerate(answers)
        ]

    arguments = TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        learning_rate=task.learning_rate,
        num_train_epochs=task.epochs,
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    validation = rows_of("validation")
    trainer = Trainer(
        model=hf_model,
        args=arguments,
        train_dataset=rows_of("train"),
        eval_dataset=validation,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    trainer.save_model()
    predicted = trainer.predict(validation)
    references = [row["labels"] for row in validation]
    answers = np.squeeze(predicted.predictions) if not labels else np.argmax(predicted.predictions, axis=1)
    if labels:
        answers, references = [labels[n] for n in answers], [labels[n] for n in references]
    context = MetricContext(labels=labels)
    figures = {one: compute_metric(one, list(answers), references, context) for one in _figures(task)}
    (directory / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def _pretrain(arguments: Sequence[str], log: Path) -> None:
    _run([sys.executable, "-m", "pretrain", *arguments], log)


def _run(command: Sequence[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if status:
        sys.exit(f"{' '.join(command)} ended with {status}: see {log}")


def _children_s() -> float:
    """Processor seconds of the commands so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _runs(record: Path) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def _print_table(options: argparse.Namespace) -> None:
    """Means and standard deviations (of the sample) of all recorded runs; processor seconds are means of a command."""
    runs = _runs(options.out / "runs.jsonl")
    print("\n| Task | Rows x epochs | Steps | Figure | Ours | transformers | Difference in its deviations "
          "| Ours: s | transformers: s | Ours / transformers |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name in options.tasks:
        task = TASKS[name]
        sides = {side: [run for run in runs if (run["task"], run["side"]) == (name, side)] for side in _SIDES}
        if any(len(of_side) < 2 for of_side in sides.values()):
            continue
        seconds = {side: mean(run["seconds"] for run in of_side) for side, of_side in sides.items()}
        for figure in _figures(task):
            values = {side: [run["figures"][figure] or 0.0 for run in of_side] for side, of_side in sides.items()}
            spread = {side: (mean(of_side), stdev(of_side)) for side, of_side in values.items()}
            apart = (spread["ours"][0] - spread["theirs"][0]) / spread["theirs"][1]
            print(
                f"| {name} | {task.rows:,} x {task.epochs} | {task.steps} | {figure} "
                f"| {_shown(spread['ours'])} | {_shown(spread['theirs'])} | {apart:+.2f} | {seconds['ours']:.1f} "
                f"| {seconds['theirs']:.1f} | {seconds['ours'] / seconds['theirs']:.2f} |"
            )


def _shown(spread: tuple[float, float]) -> str:
    return f"{100 * spread[0]:.2f} +- {100 * spread[1]:.2f}"


if __name__ == "__main__":
    main()
