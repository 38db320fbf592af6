"""Encoders at equal compute: pretrained on one text, then fine-tuned on published sets.

    python -m tests.benchmarks.encoders TEXT DATA OUT [--tera-flops 8] [--models bert electra] [--tasks sst2 cola]
        [--seeds 1 2]

TEXT is what `pretrain data build` reads; DATA has a directory for each task, as `pretrain finetune fetch` writes it.
Each model has the same layers, width, tokenizer and batch, and so many steps that the operations of its training
(`training_flops_per_token`, of a generator and of a teacher's forward pass too) are those of --tera-flops. DistilBERT
has half the layers, and its teacher is the BERT of this table, whose training is not counted. "random" is that BERT
without pretraining. Every training is a command of its own, on one rank. What OUT/pretrained.jsonl and OUT/tuned.jsonl
record is not repeated, and a pretraining that was stopped resumes.
"""

import argparse
import json
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import resolve
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.model_spec.parameters import num_parameters
from pretrain.run_dir.paths import RunDir
from tests.benchmarks.finetune import children_s, choose_rows, our_arguments, pretrain, records
from tests.benchmarks.finetune_tasks import Task

VOCABULARY = 4096
SIZES = ("model.layers=4", "model.hidden=128", "model.heads=4")
_TEXT = "model.sequence_length=128"
_STUDENT = (
    *("model.layers=2", "model.segments=0", "model.binary_head=false", "objective.next_sentence=false", _TEXT),
    "distillation={teacher: TEACHER, start_layers: [0, 2], temperature: 2, kl_weight: 5, label_weight: 2, "
    "cosine_weight: 1}",
)
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bert": ("bert", (_TEXT,)),
    "roberta": ("roberta", (_TEXT,)),
    "albert": ("albert", (_TEXT,)),
    "electra": ("electra", (_TEXT,)),
    "deberta": ("deberta", (_TEXT,)),
    "xlnet": ("xlnet", ()),  # 128 tokens of text, and queries
    "distilbert": ("bert", _STUDENT),
}
"""a config of configs/debug, and what is changed in it; TEACHER: the run of bert"""
TASKS = {
    "sst2": Task(figures=("accuracy",), rows=4096, learning_rate=5e-4),
    "cola": Task(figures=("matthews",), rows=4096, learning_rate=5e-4),
}
RANDOM = "random"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tera-flops", type=float, default=8.0)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    dataset = options.out / "dataset"
    if not dataset.exists():
        tokenizer = f"tokenizer={{type: wordpiece, vocabulary: {VOCABULARY}}}"
        built = ["data", "build", "data/bert", f"input={options.text}", f"output={dataset}", tokenizer]
        pretrain(built, options.out / "dataset.log")
    for name in options.models:
        _train(options, name)
    for name in (*options.models, *([RANDOM] if "bert" in options.models else [])):
        for task in options.tasks:
            choose_rows(options.data / task, options.out / name / task / "data", TASKS[task])
            for seed in options.seeds:
                _tune(options, name, task, seed)
    _print_table(options)


def _train(options: argparse.Namespace, name: str) -> None:
    """Pretrains a model, and records it, unless it is recorded."""
    record = options.out / "pretrained.jsonl"
    if any(line["model"] == name for line in records(record)):
        return
    config, settings = _settings(options.out, name)
    operations = _operations_per_step(resolve(load(RunConfig, config, settings)))
    steps = max(2, round(options.tera_flops * 1e12 / operations))
    settings += [
        *(f"train.steps={steps}", f"schedule.warmup_steps={max(1, steps // 10)}"),
        *(f"evaluate.every_steps={steps}", f"checkpoint.every_steps={max(1, steps // 4)}"),
    ]
    before = children_s()
    pretrain(["train", config, *settings], options.out / f"{name}.log")
    run = resolve(load(RunConfig, config, settings))
    line = {
        **{"model": name, "steps": steps, "tera_flops": steps * operations / 1e12},
        **{"parameters": num_parameters(run.model, padded=False), "seconds": round(children_s() - before, 1)},
        "tokens": steps * run.batch.sequences * run.objective.text_tokens(run.sequence_length),
    }
    _record(record, line)


def _settings(out: Path, name: str) -> tuple[str, list[str]]:
    """The config of a model, and what is changed in it."""
    config, changes = MODELS[name]
    changes = tuple(change.replace("TEACHER", str(out / "bert" / "start")) for change in changes)
    run = (f"data.path={out / 'dataset'}", f"run.dir={out / name / 'start'}", "parallel={}", "track.mlflow=false")
    return f"debug/{config}", [*run, *SIZES, *changes]


def _operations_per_step(config: RunConfig) -> float:
    """Floating-point operations of a step, of all models that it runs."""
    per_token = training_flops_per_token(config.model)
    if config.generator_model is not None:
        per_token += training_flops_per_token(config.generator_model)
    if config.distillation.teacher is not None:
        per_token += training_flops_per_token(config.teacher_config().model) / 3  # its forward pass alone
    return config.batch.sequences * config.model.sequence_length * per_token


def _tune(options: argparse.Namespace, name: str, task: str, seed: int) -> None:
    """Fine-tunes a model, and records its figures, unless they are recorded."""
    record = options.out / "tuned.jsonl"
    if any((line["model"], line["task"], line["seed"]) == (name, task, seed) for line in records(record)):
        return
    out, directory = options.out / name, options.out / name / task / f"run-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    before = children_s()
    verb, start, *rest = our_arguments(out, task, TASKS[task], seed, directory)
    more = ["finetune.weights=random"] if name == RANDOM else []
    start = str(options.out / "bert" / "start") if name == RANDOM else start
    pretrain([verb, start, *rest, *more], directory.with_suffix(".log"))
    report = json.loads((RunDir(directory).finetune_report / "report.json").read_text(encoding="utf-8"))
    figures = report["splits"]["validation"]["figures"]
    shutil.rmtree(directory)  # its weights
    line = {"model": name, "task": task, "seed": seed, "seconds": round(children_s() - before, 1), "figures": figures}
    _record(record, line)


def _record(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def _print_table(options: argparse.Namespace) -> None:
    """Means and standard deviations (of the sample) of the first figure of each task, of all recorded runs; processor
    seconds of pretraining."""
    tuned = records(options.out / "tuned.jsonl")
    titles = [f"{task}: {TASKS[task].figures[0]}" for task in options.tasks]
    print(f"\n| Model | Parameters | Steps | Tokens | Tera-FLOPs | Seconds | {' | '.join(titles)} |")
    print("|---" * (6 + len(titles)) + "|")
    for line in [*records(options.out / "pretrained.jsonl"), None]:
        name = RANDOM if line is None else line["model"]
        cells = []
        for task in options.tasks:
            figure = TASKS[task].figures[0]
            values = [run["figures"][figure] or 0.0 for run in tuned if (run["model"], run["task"]) == (name, task)]
            spread = f" +- {100 * stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{100 * mean(values):.1f}{spread}" if values else "")
        facts = ["", "0", "0", "0", "0"] if line is None else [
            f"{line['parameters']:,}", f"{line['steps']:,}", f"{line['tokens']:,}", f"{line['tera_flops']:.1f}",
            f"{line['seconds']:.0f}",
        ]  # fmt: skip
        print(f"| {' | '.join([name, *facts, *cells])} |")


if __name__ == "__main__":
    main()
