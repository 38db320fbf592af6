"""Multiple choice as lm-eval judges it: the same model, the same prompts, the same choice of every document.

lm-eval reads our prompts, examples included, as the documents of tasks of its own, and scores them by its own rules.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from pretrain.evaluate.draw import Draw
from pretrain.evaluate.harness import HarnessModel
from pretrain.evaluate.measures.base import Outcome
from pretrain.evaluate.outcomes import Outcomes
from pretrain.evaluate.protocol import Prompt, build_prompt
from pretrain.evaluate.run import Settings, evaluate
from pretrain.evaluate.scorers.causal import CausalScorer
from pretrain.evaluate.tasks.base import Sources, Task, TaskDocument
from pretrain.evaluate.tasks.registry import _FILES, task_named
from tests.unit.evaluate.fakes import LENGTH, FakeEngine, ToyTokenizer
from tests.unit.evaluate.task_lines import LINES

CHOICES = [name for name in sorted(_FILES) if task_named(name).judged == ("choice",)]
PARTIAL = {"winogrande", "wsc273"}
VARIED = re.compile(
    r"\b(tea|stove|water|fills|eats|rang|bell|home|waited|shirt|hang|ice|sand|heat|sound|plant|ink|light|loose|table|"
    r"small|glass|broke|sang|frozen|rained|slept|porch|outside|bank|lends|won|sails|dog|bees|honey|cats|keeps|flour|"
    r"sky|bag|sings?|met|left|Bo|Al|Tom)\b"
)
DOCUMENTS = 6
SEED = 3
THEIRS = {"sum": "acc", "per_character": "acc_norm", "per_byte": "acc_bytes"}
YAML = """
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


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def write_made_up_files(folder: Path) -> None:
    """Files of all choice tasks: the example lines, with other words of the same lengths in them."""
    for name in CHOICES:
        draw = random.Random(name)
        for file in task_named(name).fetch:
            made = [_varied(line, draw) for _ in range(DOCUMENTS + 2) for line in LINES[name][0]]
            (folder / file.file).write_text("".join(made))


def _varied(line: dict[str, Any], draw: random.Random) -> str:
    words: dict[str, str] = {}

    def other(found: re.Match[str]) -> str:
        letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyzäé", k=len(found[0])))
        return words.setdefault(found[0], letters.capitalize() if found[0][0].isupper() else letters)

    changed = json.loads(VARIED.sub(other, json.dumps(line)))
    if type(changed.get("label")) is int and "choices" not in changed and "pronoun" not in changed:
        changed["label"] = draw.randrange(2)
    return json.dumps(changed) + "\n"


def ours(engine: FakeEngine, data: Path, name: str, shots: int, folder: Path, limit: int = DOCUMENTS) -> Ours:
    scorer = CausalScorer(engine, ToyTokenizer(), LENGTH)  # type: ignore[arg-type]
    task, sources = task_named(name), Sources(data, None, ToyTokenizer(), SEED)  # type: ignore[arg-type]
    loaded = task.load(sources)
    assert not loaded.problems
    pool = task.load_shots(sources) if task.load_shots is not None and shots else None
    settings = Settings((shots,), limit=limit, seed=SEED, data_dir=data)
    file = folder / f"{name}-{shots}-documents.jsonl"
    evaluate(engine, scorer, None, [name], settings, outcomes=Outcomes(file))
    told = [json.loads(line) for line in file.read_text().splitlines()]
    draw = Draw(task, loaded.documents, pool, shots, 0, limit)
    assert [one["document"] for one in told] == list(range(draw.count))
    prompts = []
    for number in range(draw.count):
        shown = [draw.examples()[index] for index in draw.shown(number, SEED)]
        prompts.append(build_prompt(task.format(shots), shown, loaded.documents[number], scorer, 0))
    return Ours(prompts, loaded.documents[: draw.count], [one["outcomes"]["choice"] for one in told])


def their_task(task: Task, label: str, found: Ours, folder: Path) -> None:
    """A task of lm-eval's over the prompts, in `folder`."""
    first = found.prompts[0].asks[0].target
    delimiter = "" if task.name in PARTIAL else first[: len(first) - len(first.lstrip())]
    lines = []
    for document, prompt in zip(found.documents, found.prompts, strict=True):
        right = document.right[0] if len(document.right) == 1 else list(document.right)
        if task.name in PARTIAL:  # lm-eval has contexts as choices there, and the number of the right one as text
            choices = [prompt.before + ask.context for ask in prompt.asks]
            lines.append({"text": right, "choices": choices, "target": prompt.asks[0].target})
        else:
            choices = [ask.target.removeprefix(delimiter) for ask in prompt.asks]
            lines.append({"text": prompt.text, "choices": choices, "target": right})
    file = folder / f"{label}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = ", ".join(f"{{metric: {metric}}}" for metric in _metrics(task).values())
    yaml = YAML.format(name=label, file=file, delimiter=json.dumps(delimiter), metrics=metrics)
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


def check_agreement(engine: FakeEngine, data: Path, names: Sequence[str], folder: Path, limit: int) -> int:
    """Compares all decisions, and returns their number."""
    compared = 0
    found: dict[str, tuple[Task, Ours]] = {}
    for name in names:
        for shots in (0, 2):
            label = f"{name}-{shots}"
            found[label] = task_named(name), ours(engine, data, name, shots, folder, limit)
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


def test_every_choice_is_lm_evals(engine: FakeEngine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_made_up_files(data)
    assert len(CHOICES) == 23
    compared = check_agreement(engine, data, CHOICES, tmp_path, DOCUMENTS)
    assert compared == 2 * DOCUMENTS * (3 * (len(CHOICES) - len(PARTIAL)) + len(PARTIAL))


def test_decisions_are_not_all_the_same_by_all_ways(engine: FakeEngine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_made_up_files(data)
    chosen = [outcome["chosen"] for name in CHOICES for outcome in ours(engine, data, name, 0, tmp_path).outcomes]
    for one, other in (("sum", "per_token"), ("sum", "per_character"), ("per_character", "per_byte")):
        assert any(each[one] != each[other] for each in chosen), (one, other)
