"""Results -> the section of each task on the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.evaluate.evaluator import Evaluation, Results
from pretrain.evaluate.report import gpt3
from pretrain.evaluate.report.metrics import (
    chance_text,
    metric_named,
    metrics_of,
    score_text,
    spread_text,
)
from pretrain.evaluate.report.panels import by_shots
from pretrain.evaluate.report.samples import Sample, shown
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.evaluate.tasks.registry import HELD_OUT

_PROBLEMS = 5  # of each task, on the page
_OF_GROUP = "accuracy_sum"  # see measures/group_metrics.py


@dataclass(frozen=True)
class Bar:
    """A share as a bar, in per cent of its length."""

    score: float
    chance: float | None


@dataclass(frozen=True)
class ScoreRow:
    """One task at one number of shots."""

    shots: int
    score: str
    spread: str
    bar: Bar | None
    gpt3: Sequence[str]
    """GPT-3's scores, one per size"""


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """One task."""

    task: str
    title: str
    """common name of the task; its name where it has no other"""
    metric: str
    """in words"""
    documents: int
    draws: int
    chance: str
    rows: Sequence[ScoreRow]
    others: Sequence[tuple[str, Sequence[str]]]
    """metrics besides the main one, with their values by number of shots"""
    counts: Sequence[tuple[str, Sequence[str]]]
    """numbers of documents by number of shots"""
    groups: Sequence[tuple[str, int, Sequence[str]]]
    """name, documents and accuracy by number of shots, of each set of a task of several sets"""
    problems: Sequence[Mapping[str, str]]
    """the first ones"""
    num_problems: int
    note: str
    """sentences about the task"""
    not_shown: Sequence[Problem]
    """examples that were drawn and are none"""
    sample_shots: int
    samples: Sequence[Sample]
    panel: str | None
    """SVG, where there are several numbers of shots"""


def sections(evaluation: Evaluation, sizes: Sequence[str]) -> Iterator[TaskSection]:
    """A section for each task; it compares the scores with GPT-3 of `sizes`."""
    for task, by_k in evaluation.results.items():
        if task != HELD_OUT:
            yield _section(evaluation, task, by_k, sizes)


def _section(
    evaluation: Evaluation, task: str, by_k: Mapping[str, dict[str, Any]], sizes: Sequence[str]
) -> TaskSection:
    first = next(iter(by_k.values()))
    name = first["metric"]
    samples = evaluation.samples.get(task, {})
    most = max((int(k) for k, some in samples.items() if some), default=0)
    problems = evaluation.problems.get(task, ())
    title = evaluation.titles.get(task, task)
    return TaskSection(
        task=task,
        title=title,
        metric=metric_named(name).words,
        documents=first["documents"],
        draws=max(result.get("draws", 1) for result in by_k.values()),
        chance=chance_text(first, name),
        rows=[_row(task, int(k), result, sizes) for k, result in by_k.items()],
        others=[
            (metric_named(other).words, [score_text(result, other) for result in by_k.values()])
            for other in metrics_of(first)[1:]
        ],
        counts=list(_counts(by_k)),
        groups=[
            (
                group,
                group_result["documents"],
                [score_text(result["groups"][group], _OF_GROUP) for result in by_k.values()],
            )
            for group, group_result in first.get("groups", {}).items()
        ],
        problems=[{"where": problem.where, "what": problem.what} for problem in problems[:_PROBLEMS]],
        num_problems=len(problems),
        note=" ".join([*([evaluation.notes[task]] if task in evaluation.notes else []), *_signatures(first)]),
        not_shown=evaluation.not_shown.get(task, ()),
        sample_shots=most,
        samples=[shown(sample, name) for sample in samples.get(str(most), ())],
        panel=_panel(task, title, name, by_k, sizes[0]) if len(by_k) > 1 else None,
    )


def _signatures(result: Mapping[str, Any]) -> Iterator[str]:
    """Signatures of sacrebleu's metrics: how it computed them, in its own words."""
    for name, value in result.items():
        if name.endswith("_signature"):
            yield f"{metric_named(name.removesuffix('_signature')).short}: {value}."


def _row(task: str, k: int, result: Mapping[str, Any], sizes: Sequence[str]) -> ScoreRow:
    name = result["metric"]
    bar = None
    if metric_named(name).kind != "plain" and result[name] is not None:
        bar = Bar(100 * result[name], 100 * result["chance"] if chance_text(result, name) else None)
    cells = [gpt3.cell(task, name, k, size) for size in sizes]
    return ScoreRow(k, score_text(result, name), spread_text(result, name), bar, cells)


def _counts(by_k: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    first = next(iter(by_k.values()))
    of_texts = [("answers_cut", f"answers cut at {first['answer_tokens']:,} tokens")] if "answers_cut" in first else []
    for name, words in (
        ("documents", "documents scored"),
        ("truncated", "of these, prompts cut to fit the model"),
        ("mean_shots", "examples shown, on average"),
        *of_texts,
        ("redrawn", "examples drawn again, as they held the question and its answer"),
        ("not_asked", "documents whose answer does not fit the model"),
        ("malformed", "lines that are no document"),
    ):
        yield (
            words,
            [f"{result[name]:,.4g}" if name == "mean_shots" else f"{result[name]:,}" for result in by_k.values()],
        )


def _panel(task: str, title: str, name: str, by_k: Mapping[str, dict[str, Any]], size: str) -> str:
    scores = {int(k): (result[name], result.get(f"{name}_stderr")) for k, result in by_k.items()}
    chance = next(iter(by_k.values()))["chance"] if chance_text(next(iter(by_k.values())), name) else None
    exact = {0, 1, gpt3.few_shots(task, name)}  # elsewhere its number of examples is another one
    published = {k: value for k in scores if k in exact and (value := gpt3.score_at(task, name, k, size)) is not None}
    return by_shots(
        title, metric_named(name), scores=scores, chance=chance, beside=gpt3.size_text(size), published=published
    )


def cut_prompts(results: Results) -> list[str]:
    """Truncated prompts of each task and number of shots; empty if every prompt fits."""
    return [
        f"{task} {k}-shot {result['truncated']:,} of {result['documents']:,}"
        + (f" ({result['mean_shots']:.1f} examples shown on average)" if int(k) else "")
        for task, by_k in results.items()
        if task != HELD_OUT
        for k, result in by_k.items()
        if result["truncated"]
    ]


def cut_answers(results: Results) -> list[str]:
    """Answers of each task and number of shots that met the most tokens of an answer; empty if none did."""
    return [
        f"{task} {k}-shot {result['answers_cut']:,} of {result['documents']:,} at {result['answer_tokens']:,} tokens"
        for task, by_k in results.items()
        if task != HELD_OUT
        for k, result in by_k.items()
        if result.get("answers_cut")
    ]


def redrawn_examples(results: Results) -> list[str]:
    """Examples of each task and number of shots that were drawn again; empty if none held the question's answer."""
    return [
        f"{task} {k}-shot {result['redrawn']:,}"
        for task, by_k in results.items()
        if task != HELD_OUT
        for k, result in by_k.items()
        if result["redrawn"]
    ]
