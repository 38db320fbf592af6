"""Figures of fine-tuned models, from predictions and references: a row each, computed by well-kept libraries.

| Objective | Prediction | Reference |
|---|---|---|
| classification | class name | class name |
| regression | number | number |
| tagging | list of tags, one for each word | list of tags |
| spans | text | list of texts, of which any is right |
| choice | number of the choice, from 0 | number of the right choice |
| instructions, text_to_text | text | list of texts, of which any is right |

Fractions and correlations are written as they are, not times 100. What the references leave undefined (the Pearson
correlation with references that are all equal) is None; what the predictions alone leave undefined is 0, so that a
model that predicts a constant is no better than one that guesses. Nothing is NaN.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.config.evaluate import Evaluate
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.bleu import bleu, check_tokenize, chrf
from pretrain.evaluate.rouge import rouge
from pretrain.evaluate.tasks.normalization import NORMALIZATIONS, word_f1

Label = str | int
_CLASSES, _TEXTS = ("classification",), ("text_to_text", "instructions")
_OUTSIDE, _BIO, _BIOES = "O", ("B", "I"), ("B", "I", "E", "S")


@dataclass(frozen=True, kw_only=True)
class MetricContext:
    """What a figure may need besides predictions and references."""

    labels: Sequence[Label] = ()
    """names of classes or tags, in order of their ids"""
    positive: Label | None = None
    """class whose F1 `f1` is; None: the last of `labels`"""
    normalization: str = "squad"
    """what `exact_match` and `f1_of_tokens` compare, by its name in `NORMALIZATIONS`"""
    unicode_words: bool = False
    """ROUGE counts words of every language"""
    bleu_tokenize: str = "13a"
    """sacrebleu's tokenizer"""

    @classmethod
    def of(cls, evaluate: Evaluate, labels: Sequence[Label] = ()) -> "MetricContext":
        """Makes one of a run's settings and the labels of its objective."""
        return cls(
            labels=labels,
            positive=evaluate.positive,
            normalization=evaluate.normalization,
            unicode_words=evaluate.words == "unicode",
            bleu_tokenize=evaluate.bleu_tokenize,
        )


Compute = Callable[[Sequence[Any], Sequence[Any], MetricContext], float | None]


@dataclass(frozen=True, kw_only=True)
class FinetuneMetric:
    """One figure."""

    objectives: tuple[str, ...]
    """objectives whose predictions it judges"""
    compute: Compute
    needs: str
    """what it needs and when it is undefined, for the documentation"""
    higher_is_better: bool = True


def compute_metric(
    name: str, predictions: Sequence[Any], references: Sequence[Any], context: MetricContext | None = None
) -> float | None:
    """The figure of that name over all examples; None where the references leave it undefined. Raises ConfigError for
    an unknown name, and RunError for predictions that do not fit the references or are not finite."""
    if len(predictions) != len(references):
        raise RunError(f"{name} has {len(predictions):,} predictions for {len(references):,} references")
    if not references:
        raise RunError(f"{name} has no example: give it a split that holds a row")
    value = metric_named(name).compute(predictions, references, context or MetricContext())
    if value is not None and not math.isfinite(value):
        raise RunError(f"{name} is {value}: the predictions are too large to be compared with the references")
    return value


def metric_named(name: str) -> FinetuneMetric:
    """The figure of that name. Raises ConfigError for an unknown one."""
    if name not in METRICS:
        hint = did_you_mean(close_matches(name, METRICS), f"known are {', '.join(METRICS)}")
        raise ConfigError(f"there is no figure {name}: {hint}")
    return METRICS[name]


def check_metric(name: str, objective: str, context: MetricContext | None = None) -> None:
    """Raises ConfigError if there is no such figure, or if it cannot judge this objective with these labels."""
    metric, context = metric_named(name), context or MetricContext()
    if objective not in metric.objectives:
        suitable = ", ".join(one for one, row in METRICS.items() if objective in row.objectives)
        raise ConfigError(
            f"{name} does not suit the objective {objective}: "
            + (f"choose from {suitable}" if suitable else f"it suits {', '.join(metric.objectives)}")
        )
    if name == "f1":
        _positive(context)
    if name == "bleu":
        check_tokenize(context.bleu_tokenize)
    if name == "entity_f1" and (tag := _not_an_entity_tag(context.labels)) is not None:
        raise ConfigError(
            f"entity_f1 needs tags in BIO or BIOES, such as B-PER, I-PER and O, and {tag!r} is none: choose accuracy "
            "or macro_f1"
        )


def default_metrics(objective: str, labels: Sequence[Label] = ()) -> tuple[str, ...]:
    """The figures of an objective whose config names none, the main one first."""
    if objective == "tagging" and _not_an_entity_tag(labels) is not None:
        return ("accuracy", "macro_f1")
    return DEFAULT_METRICS[objective]


def _accuracy(predictions: Sequence[Any], references: Sequence[Any], _: MetricContext) -> float:
    predicted, expected = _flat(predictions, references)
    return sum(map(_same, predicted, expected)) / len(expected)


def _f1(predictions: Sequence[Label], references: Sequence[Label], context: MetricContext) -> float | None:
    from sklearn.metrics import f1_score

    positive = _positive(context)
    expected = [one == positive for one in references]
    if not any(expected):
        return None
    return float(f1_score(expected, [one == positive for one in predictions], zero_division=0))


def _macro_f1(predictions: Sequence[Any], references: Sequence[Any], _: MetricContext) -> float:
    from sklearn.metrics import f1_score

    predicted, expected = _ids(*_flat(predictions, references))
    return float(f1_score(expected, predicted, average="macro", zero_division=0))


def _matthews(predictions: Sequence[Label], references: Sequence[Label], _: MetricContext) -> float | None:
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _ids(predictions, references)
    return None if len(set(expected)) == 1 else float(matthews_corrcoef(expected, predicted))


def _pearson(predictions: Sequence[float], references: Sequence[float], _: MetricContext) -> float | None:
    from scipy.stats import pearsonr

    return _correlation(lambda a, b: pearsonr(a, b).statistic, predictions, references)


def _spearman(predictions: Sequence[float], references: Sequence[float], _: MetricContext) -> float | None:
    from scipy.stats import spearmanr

    return _correlation(lambda a, b: spearmanr(a, b).statistic, predictions, references)


def _correlation(
    statistic: Callable[[Any, Any], float], predictions: Sequence[float], references: Sequence[float]
) -> float | None:
    predicted, expected = _finite(predictions), np.asarray(references, np.float64)
    if np.all(expected == expected[0]):
        return None
    return 0.0 if np.all(predicted == predicted[0]) else float(statistic(predicted, expected))


def _mean_squared_error(predictions: Sequence[float], references: Sequence[float], _: MetricContext) -> float:
    from sklearn.metrics import mean_squared_error

    return float(mean_squared_error(np.asarray(references, np.float64), _finite(predictions)))


def _entity_f1(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]], context: MetricContext
) -> float | None:
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2, IOBES

    _flat(predictions, references)  # checks the lengths
    tags = {*context.labels, *(tag for row in references for tag in row)}
    if all(tag == _OUTSIDE for row in references for tag in row):
        return None
    scheme = IOBES if any(str(tag)[:2] in ("E-", "S-") for tag in tags) else IOB2
    rows = [list(row) for row in references], [list(row) for row in predictions]
    return float(f1_score(*rows, mode="strict", scheme=scheme, average="micro", zero_division=0))


def _exact_match(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
    return _mean_of_best(lambda answer, reference: float(answer == reference), predictions, references, context)


def _f1_of_tokens(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
    return _mean_of_best(
        lambda answer, reference: word_f1(answer.split(), reference.split()), predictions, references, context
    )


def _mean_of_best(
    score: Callable[[str, str], float], predictions: Sequence[str], references: Sequence[Any], context: MetricContext
) -> float:
    """The mean of each prediction's score against the reference that suits it best, after the normalization."""
    normalize = NORMALIZATIONS[context.normalization]
    scores = [
        max(score(normalize(answer), normalize(one)) for one in any_of(texts))
        for answer, texts in zip(predictions, references, strict=True)
    ]
    return sum(scores) / len(scores)


def _bleu(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
    return bleu(predictions, [*map(any_of, references)], tokenize=context.bleu_tokenize).score / 100


def _chrf(name: str) -> Compute:
    def compute(predictions: Sequence[str], references: Sequence[Any], _: MetricContext) -> float:
        return chrf(name, predictions, [*map(any_of, references)]).score / 100

    return compute


def _rouge(kind: str) -> Compute:
    def compute(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
        texts = [*map(any_of, references)]
        return float(rouge(kind, predictions, texts, unicode_words=context.unicode_words).mean())

    return compute


def any_of(texts: Any) -> Sequence[str]:
    """The references of one example: a text alone is one reference, and no reference is the empty text."""
    return [texts] if isinstance(texts, str) else list(texts) or [""]


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


def _positive(context: MetricContext) -> Label:
    """The class whose F1 `f1` is."""
    if not context.labels:
        raise ConfigError("f1 needs the names of the classes: list them in objective.labels")
    if context.positive is None:
        return context.labels[-1]
    if context.positive not in context.labels:
        known = ", ".join(map(str, context.labels))
        raise ConfigError(f"f1 cannot be that of class {context.positive}, which is none: the classes are {known}")
    return context.positive


def _not_an_entity_tag(labels: Sequence[Label]) -> Label | None:
    """The first label that is no tag of BIO or BIOES; None: all are."""
    for label in labels:
        prefix, hyphen, kind = str(label).partition("-")
        if label != _OUTSIDE and not (hyphen and kind and prefix in _BIOES):
            return label
    return None


METRICS: Mapping[str, FinetuneMetric] = {
    "accuracy": FinetuneMetric(
        objectives=(*_CLASSES, "tagging", "choice"),
        compute=_accuracy,
        needs="fraction of examples, or of words, that are right",
    ),
    "f1": FinetuneMetric(
        objectives=_CLASSES,
        compute=_f1,
        needs="the class of interest, the last label by default; undefined without a reference of it",
    ),
    "macro_f1": FinetuneMetric(
        objectives=(*_CLASSES, "tagging"),
        compute=_macro_f1,
        needs="mean of the F1 of each class that occurs in the references or the predictions",
    ),
    "matthews": FinetuneMetric(
        objectives=_CLASSES,
        compute=_matthews,
        needs="two classes or more, in the references too; 0 for constant predictions",
    ),
    "pearson": FinetuneMetric(
        objectives=("regression",),
        compute=_pearson,
        needs="two different references; 0 for constant predictions",
    ),
    "spearman": FinetuneMetric(
        objectives=("regression",),
        compute=_spearman,
        needs="two different references; equal numbers share their mean rank; 0 for constant predictions",
    ),
    "mean_squared_error": FinetuneMetric(
        objectives=("regression",), compute=_mean_squared_error, needs="numbers", higher_is_better=False
    ),
    "entity_f1": FinetuneMetric(
        objectives=("tagging",),
        compute=_entity_f1,
        needs="tags in BIO or BIOES; exact spans of valid sequences; undefined without an entity in the references",
    ),
    "exact_match": FinetuneMetric(
        objectives=("spans", *_TEXTS),
        compute=_exact_match,
        needs="texts equal to any reference after a normalization, SQuAD's by default",
    ),
    "f1_of_tokens": FinetuneMetric(
        objectives=("spans", *_TEXTS),
        compute=_f1_of_tokens,
        needs="F1 of words against the best reference after a normalization, SQuAD's by default",
    ),
    "bleu": FinetuneMetric(objectives=_TEXTS, compute=_bleu, needs="sacrebleu's BLEU of the corpus, 0 to 1"),
    "chrf": FinetuneMetric(objectives=_TEXTS, compute=_chrf("chrf"), needs="sacrebleu's chrF of the corpus, 0 to 1"),
    "chrf++": FinetuneMetric(
        objectives=_TEXTS, compute=_chrf("chrf++"), needs="sacrebleu's chrF++ of the corpus, 0 to 1"
    ),
    "rouge1": FinetuneMetric(objectives=_TEXTS, compute=_rouge("rouge1"), needs="F1 of stemmed words, best reference"),
    "rouge2": FinetuneMetric(
        objectives=_TEXTS, compute=_rouge("rouge2"), needs="F1 of pairs of stemmed words, best reference"
    ),
    "rougeL": FinetuneMetric(
        objectives=_TEXTS,
        compute=_rouge("rougeL"),
        needs="F1 of the longest common subsequence of stemmed words, best reference",
    ),
    "rougeLsum": FinetuneMetric(
        objectives=_TEXTS, compute=_rouge("rougeLsum"), needs="rougeL by lines, of texts with a sentence on each"
    ),
}
"""Figures by name."""

DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy",),
    "regression": ("pearson", "spearman"),
    "tagging": ("entity_f1", "accuracy"),
    "spans": ("f1_of_tokens", "exact_match"),
    "choice": ("accuracy",),
    "text_to_text": ("exact_match",),
    "instructions": ("rougeL",),
}
"""Figures of each objective whose config names none, the main one first; see `default_metrics` for tags that are no
entities."""
