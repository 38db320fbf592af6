"""Published sets: fine-tuning by `pretrain finetune` against the Trainer of transformers, from the same weights.

    pip install accelerate                                       # which Trainer needs
    python -m tests.benchmarks.finetune MODEL DATA OUT [--tasks cola sst2] [--seeds 1 2 3 4 5]

MODEL is a directory that save_pretrained wrote; DATA has a directory for each task, as `pretrain finetune fetch` writes
it. Each run is a command of its own, which trains, answers the validation rows and saves the model; ours and theirs
alternate. Theirs is what the example scripts run_glue.py, run_ner.py and run_qa.py do: Trainer with its defaults (AdamW
without decay, gradients clipped to 1, a linear schedule without warm-up), and batches padded to their longest row. Both
have the same rows, batches of 16, learning rate at each step, epochs and scores; seeds and the orders of the rows are
their own. Ours cuts batches into micro-batches of 8 rows. Runs are recorded in OUT/runs.jsonl, with the settings of
their task, and are not repeated.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from pretrain.finetune.sets.registry import published_set
from pretrain.run_dir.paths import RunDir
from tests.benchmarks.finetune_tasks import BATCH, TASKS, Task

MICRO = 8
_SIDES = ("theirs", "ours")
_ROWS_SEED = 0
Side = Literal["ours", "theirs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--sides", nargs="+", choices=_SIDES, default=list(_SIDES))
    options = parser.parse_args()
    import_start(options.model, options.out)
    for name in options.tasks:
        choose_rows(options.data / name, options.out / name / "data", TASKS[name])
        for seed in options.seeds:
            for side in options.sides:
                _measure(options, name, seed, side)
    _print_table(options)


def import_start(model: Path, out: Path) -> None:
    """Writes the checkpoint that our runs start from, `OUT/start`, unless it is there."""
    if not (out / "start").exists():
        pretrain(["import", "hf", str(model), "--out", str(out / "start")], out / "import.log")


def choose_rows(source: Path, target: Path, task: Task) -> None:
    """Writes the training and validation rows of a task, in their order."""
    target.mkdir(parents=True, exist_ok=True)
    for split, rows in {"train": task.rows, "validation": task.validation_rows}.items():
        lines = (source / f"{split}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        count = len(lines) if rows is None else min(rows, len(lines))
        chosen = sorted(random.Random(_ROWS_SEED).sample(range(len(lines)), count))
        (target / f"{split}.jsonl").write_text("".join(lines[number] for number in chosen), encoding="utf-8")


def _measure(options: argparse.Namespace, name: str, seed: int, side: Side) -> None:
    """Makes and records a run that is not recorded."""
    record = options.out / "runs.jsonl"
    if any((one["seed"], one["side"]) == (seed, side) for one in _runs(record, name)):
        return
    directory = options.out / name / f"{side}-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    log = directory.with_suffix(".log")
    before = children_s()
    if side == "ours":
        pretrain(our_arguments(options.out, name, TASKS[name], seed, directory), log)
        report = json.loads((RunDir(directory).finetune_report / "report.json").read_text(encoding="utf-8"))
        figures = report["splits"]["validation"]["figures"]
    else:
        arguments = [str(options.model), str(options.out / name / "data"), str(directory), name, str(seed)]
        _run([sys.executable, "-m", "tests.benchmarks.finetune_trainer", *arguments], log)
        figures = json.loads((directory / "figures.json").read_text(encoding="utf-8"))
    seconds = children_s() - before
    shutil.rmtree(directory)  # its weights
    line = {"task": name, "settings": _settings(name), "seed": seed, "side": side, "seconds": round(seconds, 2)}
    line["figures"] = figures
    with record.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def our_arguments(out: Path, name: str, task: Task, seed: int, directory: Path) -> list[str]:
    """Arguments of `pretrain` for one run of ours, which starts from `out / "start"`; writes its config."""
    published, steps = published_set(name), task.steps
    objective = {"name": published.objective, "sequence_length": task.length, **published.settings}
    if published.labels:
        objective["labels"] = list(published.labels)
    settings: dict[str, Any] = {
        "run": {"name": name, "dir": str(directory), "seed": seed},
        "train": {"epochs": task.epochs},
        "batch": {"sequences": BATCH, "micro_sequences": MICRO},
        "data": {"path": str(out / name / "data")},
        "objective": objective,
        "optimizer": {  # our rate is that of their next step: with one step more, both begin at the peak
            "learning_rate": task.learning_rate * (steps + 1) / steps,
            "beta2": 0.999,
            "eps": 1e-8,
            "weight_decay": 0.0,
        },
        "schedule": {"name": "linear", "final_fraction": 0.0, "decay_steps": steps + 1},
        "evaluate": {"every_steps": 0, "figures": list(task.figures)},
        "track": {"mlflow": False},
    }
    config = out / name / f"ours-{seed}.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # which is YAML
    return ["finetune", str(out / "start"), str(config)]


def pretrain(arguments: Sequence[str], log: Path) -> None:
    """Runs a command of `pretrain`."""
    _run([sys.executable, "-m", "pretrain", *arguments], log)


def _run(command: Sequence[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if status:
        sys.exit(f"{' '.join(command)} ended with {status}: see {log}")


def children_s() -> float:
    """Processor seconds of the commands so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _settings(name: str) -> dict[str, Any]:
    """What a run of a task depends on."""
    return {key: value for key, value in vars(TASKS[name]).items() if key not in ("figures", "samples")}


def records(record: Path) -> list[dict[str, Any]]:
    """Lines of a file of JSON lines, which may be absent."""
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def _runs(record: Path, name: str) -> list[dict[str, Any]]:
    """The recorded runs of a task with its settings of today."""
    return [run for run in records(record) if run["task"] == name and run["settings"] == _settings(name)]


def _print_table(options: argparse.Namespace) -> None:
    """Means and standard deviations (of the sample) of all recorded runs; processor seconds are means of a command."""
    print("\n| Task | Rows x epochs | Steps | Figure | Ours | transformers | Difference in its deviations "
          "| Ours: s | transformers: s | Ours / transformers |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name in options.tasks:
        task = TASKS[name]
        runs = _runs(options.out / "runs.jsonl", name)
        sides = {side: [run for run in runs if run["side"] == side] for side in _SIDES}
        if any(len(of_side) < 2 for of_side in sides.values()):
            continue
        seconds = {side: mean(run["seconds"] for run in of_side) for side, of_side in sides.items()}
        for figure in task.figures:
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
