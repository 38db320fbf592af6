"""Figures of labels: classes, numbers of choices, tags, and the numbers of regression.

They import what they need of scikit-learn, SciPy and seqeval themselves, which takes seconds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pretrain.errors import ConfigError, RunError
from pretrain.finetune.metric_context import Label, MetricContext

_OUTSIDE, _BIOES = "O", ("B", "I", "E", "S")


def accuracy(predictions: Sequence[Any], references: Sequence[Any], _: MetricContext) -> float:
    """The fraction of labels that are right: of examples, or of words."""
    predicted, expected = _flat(predictions, references)
    return sum(map(_same, predicted, expected)) / len(expected)


def f1_of_class(predictions: Sequence[Label], references: Sequence[Label], context: MetricContext) -> float | None:
    """The F1 of the class of interest; None without a reference of it."""
    from sklearn.metrics import f1_score

    positive = positive_class(context)
    expected = [one == positive for one in references]
    if not any(expected):
        return None
    return float(f1_score(expected, [one == positive for one in predictions], zero_division=0))


def macro_f1(predictions: Sequence[Any], references: Sequence[Any], _: MetricContext) -> float:
    """The mean of the F1 of each label that occurs."""
    from sklearn.metrics import f1_score

    predicted, expected = _ids(*_flat(predictions, references))
    return float(f1_score(expected, predicted, average="macro", zero_division=0))


def matthews(predictions: Sequence[Label], references: Sequence[Label], _: MetricContext) -> float | None:
    """Matthews' correlation; None where all references are of one class."""
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _ids(predictions, references)
    return None if len(set(expected)) == 1 else float(matthews_corrcoef(expected, predicted))


def pearson(predictions: Sequence[float], references: Sequence[float], _: MetricContext) -> float | None:
    """The correlation of numbers; None where all references are equal."""
    from scipy.stats import pearsonr

    return _correlation(lambda a, b: pearsonr(a, b).statistic, predictions, references)


def spearman(predictions: Sequence[float], references: Sequence[float], _: MetricContext) -> float | None:
    """The correlation of ranks; None where all references are equal."""
    from scipy.stats import spearmanr

    return _correlation(lambda a, b: spearmanr(a, b).statistic, predictions, references)


def _correlation(
    statistic: Callable[[Any, Any], float], predictions: Sequence[float], references: Sequence[float]
) -> float | None:
    predicted, expected = _finite(predictions), np.asarray(references, np.float64)
    if np.all(expected == expected[0]):
        return None
    return 0.0 if np.all(predicted == predicted[0]) else float(statistic(predicted, expected))


def mean_squared_error(predictions: Sequence[float], references: Sequence[float], _: MetricContext) -> float:
    """The mean of squared differences. Raises RunError for predictions that are not finite."""
    from sklearn.metrics import mean_squared_error

    return float(mean_squared_error(np.asarray(references, np.float64), _finite(predictions)))


def entity_f1(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]], context: MetricContext
) -> float | None:
    """The F1 of entities, by exact spans; None without an entity in the references."""
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2, IOBES

    _flat(predictions, references)  # checks the lengths
    tags = {*context.labels, *(tag for row in references for tag in row)}
    if all(tag == _OUTSIDE for row in references for tag in row):
        return None
    scheme = IOBES if any(str(tag)[:2] in ("E-", "S-") for tag in tags) else IOB2
    rows = [list(row) for row in references], [list(row) for row in predictions]
    return float(f1_score(*rows, mode="strict", scheme=scheme, average="micro", zero_division=0))


def _flat(predictions: Sequence[Any], references: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Labels of examples, or of all words of all examples."""
    if not isinstance(references[0], (list, tuple)):
        return list(predictions), list(references)
    for number, (predicted, expected) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(expected):
            raise RunError(f"example {number} has {len(predicted)} predicted tags for {len(expected)} words")
    return [tag for row in predictions for tag in row], [tag for row in references for tag in row]


def _ids(predictions: Sequence[Label], references: Sequence[Label]) -> tuple[list[int], list[int]]:
    """Numbers for labels, which may be texts and integers, among which scikit-learn knows no order."""
    ids = {label: number for number, label in enumerate(dict.fromkeys([*references, *predictions]))}
    return [ids[label] for label in predictions], [ids[label] for label in references]


def _same(predicted: Any, expected: Any) -> bool:
    return bool(predicted == expected)


def _finite(predictions: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    numbers = np.asarray(predictions, np.float64)
    if (wrong := np.flatnonzero(~np.isfinite(numbers))).size:
        raise RunError(f"the prediction of example {wrong[0]} is {numbers[wrong[0]]}: it must be a finite number")
    return numbers


def positive_class(context: MetricContext) -> Label:
    """The class whose F1 `f1` is."""
    if not context.labels:
        raise ConfigError("f1 needs the names of the classes: list them in objective.labels")
    if context.positive is None:
        return context.labels[-1]
    if context.positive not in context.labels:
        known = ", ".join(map(str, context.labels))
        raise ConfigError(f"f1 cannot be that of class {context.positive}, which is none: the classes are {known}")
    return context.positive


def not_an_entity_tag(labels: Sequence[Label]) -> Label | None:
    """The first label that is no tag of BIO or BIOES; None: all are."""
    for label in labels:
        prefix, hyphen, kind = str(label).partition("-")
        if label != _OUTSIDE and not (hyphen and kind and prefix in _BIOES):
            return label
    return None
