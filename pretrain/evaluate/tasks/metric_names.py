"""Metrics that task files name, by output type: lm-eval's names where it has one, and the name in a report.

Names alone, so that reading a task file imports no library.
"""

from typing import Literal, get_args

OutputType = Literal["loglikelihood", "multiple_choice", "generate_until", "loglikelihood_rolling"]
"""Output that a model computes, in lm-eval's words: the log-probability of one target; that of every choice; a text;
the log-probability of a text by itself."""
OUTPUT_TYPES: tuple[OutputType, ...] = get_args(OutputType)

MAX_GEN_TOKS = 256
"""Most tokens of a generated answer where a file says nothing, as lm-eval's."""

GROUP_METRIC_NAMES = ("positive_f1", "matthews", "macro_f1", "group_all", "group_f1", "by_group")
"""Metrics of several documents together: see `measures/group_metrics.py`."""

ROUGE_METRIC_NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
TEXT_METRIC_NAMES = ("bleu", "chrf", "chrf++", "gleu", *ROUGE_METRIC_NAMES)
"""Metrics of generated texts beside exact match and F1: see `measures/text_metrics.py`."""

_ROLLING = (
    *("word_perplexity", "byte_perplexity", "bits_per_byte", "token_perplexity"),
    *("character_perplexity", "bits_per_character"),
)
METRIC_NAMES: dict[OutputType, dict[str, str]] = {
    "loglikelihood": {"acc": "accuracy", "perplexity": "perplexity"},
    "multiple_choice": {
        "acc": "accuracy_sum",
        "acc_norm": "accuracy_per_character",
        "acc_bytes": "accuracy_per_byte",
        "acc_mutual_info": "accuracy_unconditional",
        "accuracy_per_token": "accuracy_per_token",
        "f1": "positive_f1",
        "mcc": "matthews",
        **{name: name for name in GROUP_METRIC_NAMES},
    },
    "generate_until": {name: name for name in ("exact_match", "f1", *TEXT_METRIC_NAMES)},
    "loglikelihood_rolling": {name: name for name in _ROLLING},
}
"""Output type -> name in a task file -> name in a report."""

DEFAULT_METRICS: dict[OutputType, tuple[str, ...]] = {
    "loglikelihood": ("perplexity", "acc"),
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
}
"""Metrics of a file without `metric_list`, as lm-eval's."""

AGGREGATIONS = {
    "acc": "mean", "acc_norm": "mean", "acc_bytes": "mean", "acc_mutual_info": "mean", "exact_match": "mean",
    "bleu": "bleu", "chrf": "chrf", "chrf++": "chrf++", "mcc": "mcc", "perplexity": "perplexity",
    "word_perplexity": "weighted_perplexity", "byte_perplexity": "weighted_perplexity",
    "bits_per_byte": "bits_per_byte",
}  # fmt: skip
"""Aggregation over documents of each of lm-eval's metrics: lm-eval's, and the only one here."""
HIGHER_IS_WORSE = ("perplexity", *_ROLLING)
