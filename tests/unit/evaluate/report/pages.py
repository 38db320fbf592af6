"""What tests of reports share: facts, a page's text, and an evaluation of every kind of task, made up by the real
measures from numbers that no model said."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np

from pretrain.evaluate.average_draws import average_draws
from pretrain.evaluate.evaluator import Evaluation
from pretrain.evaluate.measures.base import ForTask, Measure
from pretrain.evaluate.measures.registry import MEASURES
from pretrain.evaluate.report.facts import Facts
from pretrain.evaluate.scorers.base import Pair, encode_pair
from pretrain.evaluate.tasks.base import Continuation, Task, TaskDocument
from pretrain.evaluate.tasks.jsonl import Problem
from pretrain.evaluate.tasks.normalization import squad
from tests.unit.evaluate.fakes import LENGTH, ToyTokenizer

FACTS = Facts(
    name="toy", checkpoint="step-00000020", identity="0123456789abcdef", step=20, tokens=40960, parameters=130_000,
    layout="tensor 2", scorer="log probability of the target's tokens after the context", seed=0, shots=(0, 1, 4),
    draws=1, limit=5, decoding="greedy", command="pretrain eval runs/toy --tasks last_word --out reports/toy",
    versions={"torch": "2.13.0"}, unigram_entropy=7.0,
)  # fmt: skip
_HELD_OUT = {
    "loss_sum": 167_000.0, "token_count": 46_814, "words": None, "text_bytes": 83_000, "loss": 3.5741,
    "perplexity": 35.66, "word_perplexity": None, "character_perplexity": 7.6, "byte_perplexity": 7.5,
    "bits_per_character": 2.93, "bits_per_byte": 2.91, "unspaced_share": 0.0,
}  # fmt: skip
_QUESTION = "Baking bread: The baker kneads the dough on a table that is white with flour. Then she"
_ENDINGS = (
    " puts it into a bowl and lets it rise under a cloth.", " rides it down the hill and waves at the people below.",
    " reads its last page aloud to a class of children.", " paints it blue, and hangs it beside the other window.",
)  # fmt: skip


class Page(HTMLParser):
    """Collects text, tags and addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pieces, self.tags, self.addresses = [], [], []
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]

    @property
    def text(self) -> str:
        """The text of the page, with its white space."""
        return "".join(self.pieces)

    @property
    def words(self) -> str:
        """The text, with single spaces, one at least at each tag."""
        return " ".join(" ".join(self.pieces).split())


class _Asker:
    """The part of a scorer that measures without queries use."""

    tokenizer, length, conditional = ToyTokenizer(), LENGTH, True

    def pair(self, context: str, target: str) -> Pair:
        return encode_pair(self.tokenizer, context, target)  # type: ignore[arg-type]


def many(skill: float = 0.5, draws: int = 1, only: Sequence[str] | None = None) -> Evaluation:
    """Held-out text, and tasks of every kind (or `only` these) at several numbers of shots; a model of more `skill`, 0
    to 1, answers more of them rightly."""
    whole = deepcopy(_every(skill, draws))
    kept = [task for task in whole.results if only is None or task in ("heldout", *only)]
    parts = {name: {task: part[task] for task in kept if task in part} for name, part in vars(whole).items()}
    return Evaluation(**parts)


@cache
def _every(skill: float, draws: int) -> Evaluation:
    evaluation = Evaluation(
        results={"heldout": {"0": dict(_HELD_OUT)}}, samples={}, documents={}, right={}, problems={}
    )
    few = {"hellaswag": (0, 1, 20), "arc_easy": (0, 1, 50), "winograd": (0, 1, 7), "cb": (0, 1, 32)}
    for number, (task, shots) in enumerate(few.items()):
        metric = {"winograd": "accuracy_sum", "cb": "macro_f1", "arc_easy": "accuracy_unconditional"}.get(task)
        made = Task(
            name=task,
            load=lambda sources: None,  # type: ignore[arg-type, return-value]
            output_types=("multiple_choice",),
            metrics=(metric or "accuracy_per_token",),
            unconditional_context="Answer:" if task == "arc_easy" else None,
        )
        _add(evaluation, made, [_choices(task, n) for n in range(60)], shots, skill, number, draws)
    arithmetic = Task(
        name="arithmetic_2da",
        load=lambda sources: None,  # type: ignore[arg-type, return-value]
        output_types=("loglikelihood", "generate_until"),
        metrics=("exact_match",),
    )
    sums = [TaskDocument(f"Q: What is {n} plus 48?\nA:", f" {n + 48}", where=f"sums.jsonl:{n}") for n in range(10, 90)]
    _add(evaluation, arithmetic, sums, (0, 1, 50), skill, 7, draws)
    coqa = replace(arithmetic, name="coqa", output_types=("generate_until",), metrics=("f1",), normalize=squad)
    asked = [TaskDocument("Q: Who?\nA:", " Ann", references=("Ann", "Ann of old")) for _ in range(20)]
    _add(evaluation, coqa, asked, (0, 1, 5), skill, 8, draws)
    translation = replace(arithmetic, name="wmt14_en_fr", output_types=("generate_until",), metrics=("bleu",))
    sentences = [TaskDocument("The cat sat on the mat. =", " Le chat dort sur le tapis.") for _ in range(8)]
    _add(evaluation, translation, sentences, (0, 1, 64), skill, 9, draws)
    text = replace(arithmetic, name="ptb", output_types=("loglikelihood_rolling",), metrics=("word_perplexity",))
    _add(evaluation, text, [TaskDocument("", "no it was n't black monday " * 400)], (0,), skill, 10, 1)
    evaluation.problems["hellaswag"] = [
        Problem(f"hellaswag_validation.jsonl:{line}", "it has no 'label', only ind, ctx_a, ctx_b") for line in (17, 99)
    ]
    evaluation.results["arithmetic_2da"]["50"] |= {"truncated": 12, "mean_shots": 48.5}
    return evaluation


def _choices(task: str, number: int) -> TaskDocument:
    where = f"{task}.jsonl:{number + 1}"
    if task == "winograd":
        begin = "The trophy did not fit into the trunk, because the "
        choices = tuple(Continuation(begin + name, " is too big.") for name in ("trophy", "trunk"))
        return TaskDocument(begin, " is too big.", choices, (0,), where=where)
    choices = tuple(Continuation(_QUESTION, text) for text in _ENDINGS)
    return TaskDocument(_QUESTION, _ENDINGS[number % 4], choices, (number % 4,), where=where)


def _add(
    evaluation: Evaluation, task: Task, documents: Sequence[TaskDocument], shots: Sequence[int], skill: float,
    seed: int, draws: int,
) -> None:  # fmt: skip
    measures: list[Measure] = [MEASURES[kind](ForTask(task, documents, None), _Asker()) for kind in task.output_types]  # type: ignore[arg-type]
    evaluation.results[task.name], evaluation.samples[task.name], evaluation.right[task.name] = {}, {}, {}
    evaluation.documents[task.name], evaluation.problems[task.name] = documents, []
    for place, k in enumerate(shots):
        results = []
        for draw in range(draws if k else 1):
            random = np.random.default_rng([seed, k, draw])
            right = random.random(len(documents)) < skill * (0.6 + 0.2 * place)
            outcomes = [_outcomes(measures, one, hit, random) for one, hit in zip(documents, right, strict=True)]
            found: dict[str, Any] = {"documents": len(documents), "not_asked": 0, "truncated": 0, "redrawn": 0}
            found |= {"mean_shots": float(k), "metric": task.metric}
            for measure in measures:
                found |= measure.result([one[measure.name] for one in outcomes], documents)
            results.append(found)
        evaluation.results[task.name][str(k)] = average_draws(results, len(evaluation.problems[task.name]))
        evaluation.right[task.name][str(k)] = right.tolist()
        chosen = [*np.flatnonzero(right)[:2], *np.flatnonzero(~right)[:2]]
        evaluation.samples[task.name][str(k)] = [_sample(documents[n], k, bool(right[n]), outcomes[n]) for n in chosen]


def _outcomes(
    measures: Sequence[Measure], document: TaskDocument, hit: bool, random: np.random.Generator
) -> dict[str, Any]:  # fmt: skip
    found = {}
    for measure in measures:
        if measure.name == "choice":
            totals = -20 - 10 * random.random(len(document.choices))
            totals[document.right[0] if hit else (document.right[0] + 1) % len(totals)] = -8.25
            numbers = [(total, 11.0, -25.0) for total in totals]
        elif measure.name == "text":
            words = document.target.strip() if hit else document.target.strip()[::-1]
            ids = ToyTokenizer().encode(words)[: measure.answer_tokens]
            numbers = [(0.0, *map(float, ids), *[-1.0] * (measure.answer_tokens - len(ids)))]
        else:
            numbers = [(-1.0 - random.random(), float(hit))] if measure.name == "target" else [(-9500.0, 2400.0)]
        found[measure.name] = measure.outcome(np.array(numbers).reshape(-1), document)
    return found


def _sample(document: TaskDocument, k: int, right: bool, outcomes: dict[str, Any]) -> dict[str, Any]:
    contexts = [choice.context for choice in document.choices]
    question = contexts[0] if contexts else document.context
    return {
        "document": 0,
        "where": document.where,
        "prompt": "".join(f"{question}{document.target}\n\n" for _ in range(k)) + question,
        "question": question,
        "choices": [choice.target.strip() for choice in document.choices] or None,
        "contexts": contexts if len(set(contexts)) > 1 else None,
        "correct": list(document.right),
        "target": document.target.strip(),
        "references": list(document.references),
        "right": right,
        "outcomes": outcomes,
    }
