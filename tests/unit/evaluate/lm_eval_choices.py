"""Multiple choice by lm-eval: it reads our prompts, examples included, as the documents of tasks of its own, and scores
them by its own rules."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from pretrain.evaluate.evaluator import evaluate
from pretrain.evaluate.harness import HarnessModel
from pretrain.evaluate.measures.base import Outcome
from pretrain.evaluate.outcomes import Outcomes
from pretrain.evaluate.protocol import Prompt, build_prompt
from pretrain.evaluate.score_draw import Draw
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.base import Sources, Task, TaskDocument
from pretrain.evaluate.tasks.registry import task_named
from tests.unit.evaluate.fakes import LENGTH, FakeEngine, ToyTokenizer

PARTIAL = {"winogrande", "wsc273"}
"""whose contexts differ by the choice"""
THEIRS = {"sum": "acc", "per_character": "acc_norm", "per_byte": "acc_bytes"}
_SEED = 3
_YAML = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: text
doc_to_target: target
doc_to_choice: choices
target_delimiter: {delimiter}
metric_list: [{metrics}]
"""


@dataclass(frozen=True)
class Ours:
    """What `evaluate` found of a task at one number of shots."""

    prompts: Sequence[Prompt]
    documents: Sequence[TaskDocument]
    outcomes: Sequence[Outcome]


def ours(engine: FakeEngine, data: Path, name: str, shots: int, folder: Path, limit: int) -> Ours:
    scorer = CausalScorer(engine, ToyTokenizer(), LENGTH)  # type: ignore[arg-type]
    task, sources = task_named(name), Sources(data, None, ToyTokenizer(), _SEED)  # type: ignore[arg-type]
    loaded = task.load(sources)
    assert not loaded.problems
    pool = task.load_shots(sources) if task.load_shots is not None and shots else None
    settings = EvalSettings(shots=(shots,), limit=limit, seed=_SEED, data_dir=data)
    file = folder / f"{name}-{shots}-documents.jsonl"
    evaluate(engine, scorer, None, [name], settings, outcomes=Outcomes(file))
    told = [json.loads(line) for line in file.read_text().splitlines()]
    draw = Draw(task, loaded, pool, shots, 0)
    assert [one["document"] for one in told] == list(range(min(limit, len(loaded))))
    prompts, asked = [], [number for number, one in enumerate(told) if one["outcomes"]]  # others: too long to ask
    for number in asked:
        shown = [draw.example(index) for index in draw.shown(number, _SEED)]
        prompts.append(build_prompt(task.format(shots), shown, loaded.documents[number], scorer, 0))
    outcomes = [told[number]["outcomes"]["choice"] for number in asked]
    return Ours(prompts, [loaded.documents[number] for number in asked], outcomes)


def their_task(task: Task, label: str, found: Ours, folder: Path) -> None:
    """A task of lm-eval's over the prompts, in `folder`."""
    first = found.prompts[0].continuations[0].target
    delimiter = "" if task.name in PARTIAL else first[: len(first) - len(first.lstrip())]
    lines = []
    for document, prompt in zip(found.documents, found.prompts, strict=True):
        right = document.right[0] if len(document.right) == 1 else list(document.right)
        if task.name in PARTIAL:  # lm-eval has contexts as choices there, and the number of the right one as text
            choices = [prompt.before + one.context for one in prompt.continuations]
            lines.append({"text": right, "choices": choices, "target": prompt.continuations[0].target})
        else:
            choices = [one.target.removeprefix(delimiter) for one in prompt.continuations]
            lines.append({"text": prompt.text, "choices": choices, "target": right})
    file = folder / f"{label}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = ", ".join(f"{{metric: {metric}}}" for metric in _metrics(task).values())
    yaml = _YAML.format(name=label, file=file, delimiter=json.dumps(delimiter), metrics=metrics)
    (folder / f"{label}.yaml").write_text(yaml)


def _metrics(task: Task) -> dict[str, str]:
    return {"sum": "acc"} if task.name in PARTIAL else THEIRS


def their_decisions(engine: FakeEngine, labels: Sequence[str], folder: Path) -> dict[str, list[dict[str, Any]]]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    scored = lm_eval.simple_evaluate(
        model=HarnessModel(engine, ToyTokenizer(), LENGTH),  # type: ignore[arg-type]
        tasks=list(labels), task_manager=manager, bootstrap_iters=0, log_samples=True,
    )  # fmt: skip
    return {label: sorted(samples, key=lambda sample: sample["doc_id"]) for label, samples in scored["samples"].items()}


def check_agreement(
    engine: FakeEngine, data: Path, shots: Mapping[str, Sequence[int]], folder: Path, limit: int
) -> int:
    """Compares all decisions of tasks at numbers of shots, and returns how many there are."""
    compared = 0
    found: dict[str, tuple[Task, Ours]] = {}
    for name, numbers in shots.items():
        for number in numbers:
            label = f"{name}-{number}"
            found[label] = task_named(name), ours(engine, data, name, number, folder, limit)
            their_task(found[label][0], label, found[label][1], folder)
    theirs = their_decisions(engine, list(found), folder)
    for label, (task, mine) in found.items():
        for way, metric in _metrics(task).items():
            decisions = [bool(outcome["right"][way]) for outcome in mine.outcomes]
            assert decisions == [bool(sample[metric]) for sample in theirs[label]], (label, way)
            compared += len(decisions)
        for outcome, sample in zip(mine.outcomes, theirs[label], strict=True):
            said = [float(response[0]) for response in sample["filtered_resps"]]
            assert outcome["log_probabilities"] == pytest.approx(said, abs=1e-4)
    return compared
