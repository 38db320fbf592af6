"""Metrics over the choices of several documents. Choices are compared by the sum of log probabilities, as they are
labels of one or two tokens. Of choices with one text, all count as the last of them.

- positive_f1: F1 of the last choice, which is lm-eval's `f1` of two choices (MRPC's, QQP's)
- matthews: Matthews correlation of the numbers of choices, lm-eval's `mcc` (CoLA's); 0 where all are the same
- macro_f1: mean of the classes' F1, a class being the number of a choice (CommitmentBank's)
- group_all: share of the groups in which every document is answered rightly (MultiRC's exact match of questions)
- group_f1: F1 of the documents whose last choice is right, each an answer that is true (MultiRC's F1 of answers)
- by_group: accuracy of each group, under `groups` (BLiMP's 67 sets)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.measures.base import Outcome, fraction
from pretrain.evaluate.tasks.base import TaskDocument

_WAY = "sum"
_RESAMPLES = 1000  # of documents or groups, for a standard error

GroupMetric = Callable[[Sequence[Outcome], Sequence[TaskDocument]], dict[str, Any]]


def _positive_f1(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    chosen, right = _labels(outcomes, documents)
    last = len(documents[0].choices) - 1

    def of(picked: NDArray[np.int64]) -> float:
        return _f1(chosen[picked] == last, right[picked] == last)

    return _resampled("positive_f1", of, [np.array([n]) for n in range(len(chosen))])


def _matthews(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    from sklearn.metrics import matthews_corrcoef

    chosen, right = _labels(outcomes, documents)

    def of(picked: NDArray[np.int64]) -> float:
        if len(np.unique([right[picked], chosen[picked]])) == 1:
            return 0.0  # as scikit-learn has it, which warns of it
        return float(matthews_corrcoef(right[picked], chosen[picked]))

    return _resampled("matthews", of, [np.array([n]) for n in range(len(chosen))])


def _macro_f1(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    chosen, right = _labels(outcomes, documents)
    classes = sorted({*chosen.tolist(), *right.tolist()})

    def of(picked: NDArray[np.int64]) -> float:
        return math.fsum(_f1(chosen[picked] == c, right[picked] == c) for c in classes) / len(classes)

    return _resampled("macro_f1", of, [np.array([n]) for n in range(len(chosen))])


def _group_f1(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    chosen, right = _labels(outcomes, documents)
    true = np.array([len(document.choices) - 1 for document in documents])

    def of(picked: NDArray[np.int64]) -> float:
        return _f1(chosen[picked] == true[picked], right[picked] == true[picked])

    return _resampled("group_f1", of, _groups(documents))


def _group_all(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    hits = np.array([outcome["right"][_WAY] for outcome in outcomes])
    return fraction("group_all", np.array([hits[members].all() for members in _groups(documents)]))


def _by_group(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    hits = np.array([outcome["right"][_WAY] for outcome in outcomes])
    return {
        "groups": {
            documents[members[0]].group: {"documents": len(members), **fraction(f"accuracy_{_WAY}", hits[members])}
            for members in _groups(documents)
        }
    }


GROUP_METRICS: dict[str, GroupMetric] = {
    "positive_f1": _positive_f1,
    "matthews": _matthews,
    "macro_f1": _macro_f1,
    "group_f1": _group_f1,
    "group_all": _group_all,
    "by_group": _by_group,
}


def _labels(
    outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """[documents] numbers of the chosen and of the right choices: the same where any right one was chosen."""
    labels = []
    for outcome, document in zip(outcomes, documents, strict=True):
        chosen = outcome["chosen"][_WAY]
        right = chosen if chosen in document.correct else document.right[0]
        labels.append([document.equal_choices(number)[-1] for number in (chosen, right)])
    chosen_labels, right_labels = np.array(labels).T
    return chosen_labels, right_labels


def _groups(documents: Sequence[TaskDocument]) -> list[NDArray[np.int64]]:
    members: dict[str, list[int]] = {}
    for number, document in enumerate(documents):
        members.setdefault(document.group, []).append(number)
    return [np.array(numbers) for numbers in members.values()]


def _f1(chosen: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """0 where neither occurs."""
    both = int((chosen & true).sum())
    return 2 * both / max(1, int(chosen.sum()) + int(true.sum()))


def _resampled(
    name: str, of: Callable[[NDArray[np.int64]], float], units: Sequence[NDArray[np.int64]]
) -> dict[str, Any]:  # fmt: skip
    """The metric over all units, and its standard error by resampling the units, with a fixed seed."""
    draw = np.random.default_rng(0)
    error = None
    if len(units) > 1:
        values = [
            of(np.concatenate([units[n] for n in draw.integers(len(units), size=len(units))]))
            for _ in range(_RESAMPLES)
        ]
        error = float(np.std(values))
    return {name: of(np.concatenate(units)), f"{name}_stderr": error}
