"""One task at one number of shots, with one draw of few-shot examples: the outcomes of its documents, and its
result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.engine.base import Engine
from pretrain.errors import ConfigError
from pretrain.evaluate.bleu import check_tokenize
from pretrain.evaluate.measures.base import ForTask, Measure, Query
from pretrain.evaluate.measures.registry import MEASURES
from pretrain.evaluate.outcomes import DocumentResult, Outcomes, digest
from pretrain.evaluate.protocol import (
    DrawnExamples,
    Prompt,
    build_prompt,
    example_holds_answer,
    shot_indices,
    shots_from_elsewhere,
)
from pretrain.evaluate.ranks import gather, my_items
from pretrain.evaluate.scorers.base import Scorer
from pretrain.evaluate.settings import EvalSettings
from pretrain.evaluate.tasks.base import Continuation, Examples, Loaded, Task, TaskDocument
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.process import watchdog

_AT_A_TIME = 256  # documents of a data rank, between two additions to documents.jsonl
_SAMPLES = 2  # right ones, and as many wrong ones
_BY_LENGTH_OF_CHOICE = ("accuracy_per_character", "accuracy_per_byte")
_HEAD = 4  # numbers of a document besides its measures': shots shown, whether it was cut, whether its answer fits, and
# the examples that were drawn again
_SMALL_POOL = 10  # times the shots: a larger one hardly holds one question so often that other examples run out


@dataclass(frozen=True)
class Draw:
    """A task at one number of shots, with one draw of few-shot examples."""

    task: Task
    loaded: Loaded
    pool: Examples | None
    """documents that examples are drawn from; None: the task's own"""
    shots: int
    number: int

    @property
    def documents(self) -> Sequence[TaskDocument]:
        """All documents of the task."""
        return self.loaded.documents

    def examples(self, document: int, seed: int) -> DrawnExamples:
        """The examples before a document."""
        question, name = self.documents[document], self.task.name

        def holds(number: int) -> bool:
            return example_holds_answer(self.example(number), question)

        if self.pool is not None:
            return shots_from_elsewhere(
                name, document, self.pool, self.shots, seed=seed, draw=self.number, holds_answer=holds
            )
        if not self.task.examples_share_group:
            return shot_indices(
                name, document, len(self.documents), self.shots, seed=seed, draw=self.number, holds_answer=holds
            )
        peers = [index for index, one in enumerate(self.documents) if one.group == question.group]
        drawn = shot_indices(
            f"{name}/{question.group}", peers.index(document), len(peers), self.shots, seed=seed, draw=self.number,
            holds_answer=lambda index: holds(peers[index]),
        )  # fmt: skip
        return DrawnExamples([peers[index] for index in drawn.numbers], drawn.redrawn)

    def shown(self, document: int, seed: int) -> list[int]:
        """Numbers of the examples before a document, in order."""
        return self.examples(document, seed).numbers

    def check(self, seed: int, limit: int | None) -> None:
        """Raises ConfigError where a document, of the first `limit`, has too few examples."""
        candidates = len(self.documents if self.pool is None else self.pool)
        every = self.task.examples_share_group or candidates < _SMALL_POOL * self.shots
        for document in range(len(self.documents[:limit]) if every else 1):
            self.shown(document, seed)

    def example(self, number: int) -> TaskDocument:
        """The example with a number that `shown` returned."""
        document = (self.loaded if self.pool is None else self.pool).example(number)
        assert document is not None, "only examples that can be shown are drawn"
        return document


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The outcomes of a draw."""

    of: str
    """digest of what the outcomes depend on: see outcomes.py"""
    about: Mapping[str, Any]
    results: Sequence[DocumentResult]
    """result of each document, including those that did not fit the model"""
    result: dict[str, Any]
    samples: list[dict[str, Any]]
    right: Sequence[bool | None]
    """whether each document was answered correctly; None: it did not fit the model"""
    problems: Sequence[Problem]


def score_draw(
    engine: Engine,
    scorer: Scorer,
    draw: Draw,
    *,
    settings: EvalSettings,
    outcomes: Outcomes,
    progress: Callable[[str, int, int], None],
) -> Scored:
    """Scores every document that `outcomes` has no result of. `progress` gets a label, the number of documents done and
    their total. Collective over all ranks."""
    task, documents = draw.task, draw.documents
    about = {"task": task.name, "shots": draw.shots, "draw": draw.number}
    task_inputs = ForTask(task, documents, settings.decoding)
    measures = [MEASURES[kind](task_inputs, scorer) for kind in task.output_types]
    digests = [part.digest for part in (draw.loaded, draw.pool) if part is not None]
    widths = [measure.width for measure in measures]
    of = digest(settings.identity, scorer.name, settings.seed, repr(settings.decoding), about, digests, widths)
    scoring = _DrawScoring(engine, scorer, draw, measures, settings.seed)
    count = min(len(documents), settings.limit or len(documents))
    numbers = scoring.from_before(outcomes.known(of) if engine.is_reporter else {}, count)
    todo = [index for index in range(count) if np.isnan(numbers[index, 0])]
    step = _AT_A_TIME * engine.data_world
    for first in range(0, len(todo), step):
        label = f"{task.name} {draw.shots}-shot" + (f", draw {draw.number + 1}" if draw.number else "")
        watchdog.kick(f"scoring {label}")
        progress(label, count - len(todo) + first, count)
        part = todo[first : first + step]
        numbers[part] = scoring.score(part)
        if engine.is_reporter:
            outcomes.add(of, about, (scoring.document_result(index, numbers[index]) for index in part))
    results = [scoring.document_result(index, numbers[index]) for index in range(count)]
    right = [_right(one.outcomes, task.metric) if one.outcomes else None for one in results]
    problems = [
        Problem(documents[index].where or f"document {index}", f"its answer is longer than the model's {scorer.length}")
        for index, one in enumerate(results)
        if not one.outcomes
    ]
    return Scored(
        of=of,
        about=about,
        results=results,
        result=scoring.result(results, numbers),
        samples=scoring.samples(results, right),
        right=right,
        problems=problems,
    )


class _DrawScoring:
    """The scoring of one draw: its prompts, and the numbers of each document."""

    def __init__(self, engine: Engine, scorer: Scorer, draw: Draw, measures: Sequence[Measure], seed: int) -> None:
        self._engine, self._scorer, self._draw, self._measures, self._seed = engine, scorer, draw, measures, seed
        self._answer_tokens = max(measure.answer_tokens for measure in measures)
        self._width = _HEAD + sum(measure.width for measure in measures)

    def prompt(self, index: int) -> Prompt:
        if self._draw.task.output_types == (
            "loglikelihood_rolling",
        ):  # a text by itself, of any length, which is read in windows
            return Prompt("", (Continuation("", self._draw.documents[index].target),), (), 0, False)
        draw = self._draw
        shown = [draw.example(number) for number in draw.shown(index, self._seed)]
        form = draw.task.format(draw.shots)
        return build_prompt(form, shown, draw.documents[index], self._scorer, self._answer_tokens)

    def score(self, part: Sequence[int]) -> NDArray[np.float64]:
        """[part, width] numbers of the documents with these indices, on every rank. Collective."""
        mine = [part[item] for item in my_items(self._engine, len(part))]
        prompts = {index: self.prompt(index) for index in mine}
        fits = {i: all(self._scorer.answerable(len(t)) for _, t in p.pairs) for i, p in prompts.items()}
        queries = [Query(self._draw.documents[index], prompts[index]) for index in mine if fits[index]]
        numbers = np.zeros((len(mine), self._width))
        heads = [(p.shots, p.truncated, fits[i], self._redrawn(i)) for i, p in prompts.items()]
        numbers[:, :_HEAD] = np.array(heads).reshape(-1, _HEAD)
        rows, column = np.flatnonzero([fits[index] for index in mine]), _HEAD
        for measure in self._measures:
            numbers[rows, column : column + measure.width] = measure.score(self._scorer, queries)
            column += measure.width
        return gather(self._engine, numbers, len(part))

    def from_before(self, known: Mapping[int, DocumentResult], count: int) -> NDArray[np.float64]:
        """[count, width] numbers of the first documents, on every rank; NaN for those that the reporting rank does not
        know, or knows after other examples. Collective."""
        numbers = np.full((count, self._width), -np.inf)
        for index, result in known.items():
            if index < count and self._draw.shown(index, self._seed)[: len(result.shown)] == list(result.shown):
                of_measures = [list(m.numbers(result.outcomes[m.name])) for m in self._measures if result.outcomes]
                head = [len(result.shown), result.truncated, bool(result.outcomes), self._redrawn(index)]
                row = [*map(float, head), *(value for values in of_measures for value in values)]
                numbers[index] = [*row, *[0.0] * (self._width - len(row))]
        numbers = self._engine.largest(numbers)
        numbers[np.isinf(numbers)] = np.nan
        return numbers

    def _redrawn(self, index: int) -> int:
        return self._draw.examples(index, self._seed).redrawn

    def document_result(self, index: int, numbers: NDArray[np.float64]) -> DocumentResult:
        """The result of a document, as documents.jsonl records it."""
        document, column, outcomes = self._draw.documents[index], _HEAD, {}
        for measure in self._measures if numbers[2] else ():
            outcomes[measure.name] = measure.outcome(numbers[column : column + measure.width], document)
            column += measure.width
        shown = self._draw.shown(index, self._seed)[: int(numbers[0])]
        return DocumentResult(index, document.where, shown, bool(numbers[1]), outcomes)

    def result(self, results: Sequence[DocumentResult], numbers: NDArray[np.float64]) -> dict[str, Any]:
        """Sums, counts and metrics over the documents whose answer fits the model. Raises ConfigError if none does."""
        task, documents = self._draw.task, self._draw.documents
        answerable = [index for index, one in enumerate(results) if one.outcomes]
        if not answerable:
            raise ConfigError(
                f"task {task.name}: no document's answer fits the {self._scorer.length} positions of the model"
            )
        result: dict[str, Any] = {
            "documents": len(answerable),
            "not_asked": len(results) - len(answerable),
            "truncated": int(numbers[answerable, 1].sum()),
            "mean_shots": float(numbers[answerable, 0].sum()) / len(answerable),
            "redrawn": int(numbers[answerable, 3].sum()),
            "metric": task.metric,
        }
        for measure in self._measures:
            of_measure = [results[index].outcomes[measure.name] for index in answerable]
            result |= measure.result(of_measure, [documents[index] for index in answerable])
        return result

    def samples(self, results: Sequence[DocumentResult], right: Sequence[bool | None]) -> list[dict[str, Any]]:
        """The first documents that were answered correctly, and the first that were not."""
        answerable = [index for index, one in enumerate(results) if one.outcomes]
        wrong = [index for index in answerable if not right[index]][:_SAMPLES]
        chosen = sorted([*wrong, *[index for index in answerable if right[index]][:_SAMPLES]])
        samples = []
        for index in chosen:
            prompt, document = self.prompt(index), self._draw.documents[index]
            contexts = [one.context for one in prompt.continuations]
            samples.append(
                {
                    "document": index,
                    "where": document.where,
                    "prompt": prompt.text,
                    "question": prompt.continuations[0].context,
                    "choices": [one.target.strip() for one in prompt.continuations] if document.choices else None,
                    "contexts": contexts if len(set(contexts)) > 1 else None,
                    "correct": sorted(document.correct),
                    "target": document.target.strip(),
                    "references": list(document.references),
                    "right": right[index],
                    "outcomes": results[index].outcomes,
                }
            )
        return samples


def check_kind(task: Task, scorer: Scorer) -> None:
    """Raises ConfigError for a task that a model of the scorer's kind cannot do."""
    if "generate_until" in task.output_types and not scorer.generates:
        raise ConfigError(f"task {task.name} asks for text, which a model of this kind does not make")
    if "bleu" in task.metrics:
        check_tokenize(task.bleu_tokenize)
    if "loglikelihood_rolling" in task.output_types and not scorer.rolls:
        raise ConfigError(
            f"task {task.name} asks for the probability of a text, which a model of this kind does not say"
        )
    if not scorer.conditional and ("loglikelihood" in task.output_types or task.metric in _BY_LENGTH_OF_CHOICE):
        raise ConfigError(
            f"task {task.name} asks for the probability of a target after its context, and the model reads from right "
            "to left: choose a task whose choices are compared by accuracy_sum or accuracy_per_token, or a perplexity"
        )


def _right(outcomes: Mapping[str, Any], metric: str) -> bool:
    """Whether the answer is correct by the task's metric; for a metric over all documents, by the sum of log
    probabilities."""
    if "choice" in outcomes:
        by_way = outcomes["choice"]["right"]
        return bool(by_way.get(metric.removeprefix("accuracy_"), by_way["sum"]))
    return bool(outcomes.get("target" if metric == "accuracy" else "text", {}).get("right", False))
