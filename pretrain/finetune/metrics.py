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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.bleu import check_tokenize
from pretrain.finetune.label_metrics import (
    accuracy,
    entity_f1,
    f1_of_class,
    macro_f1,
    matthews,
    mean_squared_error,
    not_an_entity_tag,
    pearson,
    positive_class,
    spearman,
)
from pretrain.finetune.metric_context import Compute, Label, MetricContext
from pretrain.finetune.text_metrics import corpus_bleu, corpus_chrf, exact_match, f1_of_tokens, mean_rouge

_CLASSES, _TEXTS = ("classification",), ("text_to_text", "instructions")


@dataclass(frozen=True, kw_only=True)
class FinetuneMetric:
    """One figure."""

    objectives: tuple[str, ...]
    """objectives whose predictions it judges"""
    compute: Compute
    needs: str
    """inputs that it needs and cases in which it is undefined, for the documentation"""
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
        positive_class(context)
    if name == "bleu":
        check_tokenize(context.bleu_tokenize)
    if name == "entity_f1" and (tag := not_an_entity_tag(context.labels)) is not None:
        raise ConfigError(
            f"entity_f1 needs tags in BIO or BIOES, such as B-PER, I-PER and O, and {tag!r} is none: choose accuracy "
            "or macro_f1"
        )


def default_metrics(objective: str, labels: Sequence[Label] = ()) -> tuple[str, ...]:
    """The figures of an objective whose config names none, the main one first."""
    if objective == "tagging" and not_an_entity_tag(labels) is not None:
        return ("accuracy", "macro_f1")
    return DEFAULT_METRICS[objective]


METRICS: Mapping[str, FinetuneMetric] = {
    "accuracy": FinetuneMetric(
        objectives=(*_CLASSES, "tagging", "choice"),
        compute=accuracy,
        needs="fraction of examples, or of words, that are right",
    ),
    "f1": FinetuneMetric(
        objectives=_CLASSES,
        compute=f1_of_class,
        needs="the class of interest, the last label by default; undefined without a reference of it",
    ),
    "macro_f1": FinetuneMetric(
        objectives=(*_CLASSES, "tagging"),
        compute=macro_f1,
        needs="mean of the F1 of each class that occurs in the references or the predictions",
    ),
    "matthews": FinetuneMetric(
        objectives=_CLASSES,
        compute=matthews,
        needs="two classes or more, in the references too; 0 for constant predictions",
    ),
    "pearson": FinetuneMetric(
        objectives=("regression",),
        compute=pearson,
        needs="two different references; 0 for constant predictions",
    ),
    "spearman": FinetuneMetric(
        objectives=("regression",),
        compute=spearman,
        needs="two different references; equal numbers share their mean rank; 0 for constant predictions",
    ),
    "mean_squared_error": FinetuneMetric(
        objectives=("regression",), compute=mean_squared_error, needs="numbers", higher_is_better=False
    ),
    "entity_f1": FinetuneMetric(
        objectives=("tagging",),
        compute=entity_f1,
        needs="tags in BIO or BIOES; exact spans of valid sequences; undefined without an entity in the references",
    ),
    "exact_match": FinetuneMetric(
        objectives=("spans", *_TEXTS),
        compute=exact_match,
        needs="texts equal to any reference after a normalization, SQuAD's by default",
    ),
    "f1_of_tokens": FinetuneMetric(
        objectives=("spans", *_TEXTS),
        compute=f1_of_tokens,
        needs="F1 of words against the best reference after a normalization, SQuAD's by default",
    ),
    "bleu": FinetuneMetric(objectives=_TEXTS, compute=corpus_bleu, needs="sacrebleu's BLEU of the corpus, 0 to 1"),
    "chrf": FinetuneMetric(
        objectives=_TEXTS, compute=corpus_chrf("chrf"), needs="sacrebleu's chrF of the corpus, 0 to 1"
    ),
    "chrf++": FinetuneMetric(
        objectives=_TEXTS, compute=corpus_chrf("chrf++"), needs="sacrebleu's chrF++ of the corpus, 0 to 1"
    ),
    "rouge1": FinetuneMetric(
        objectives=_TEXTS, compute=mean_rouge("rouge1"), needs="F1 of stemmed words, best reference"
    ),
    "rouge2": FinetuneMetric(
        objectives=_TEXTS, compute=mean_rouge("rouge2"), needs="F1 of pairs of stemmed words, best reference"
    ),
    "rougeL": FinetuneMetric(
        objectives=_TEXTS,
        compute=mean_rouge("rougeL"),
        needs="F1 of the longest common subsequence of stemmed words, best reference",
    ),
    "rougeLsum": FinetuneMetric(
        objectives=_TEXTS, compute=mean_rouge("rougeLsum"), needs="rougeL by lines, of texts with a sentence on each"
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
