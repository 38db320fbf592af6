"""Settings that a figure of a fine-tuned model is computed from, besides predictions and references."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.config.evaluate import Evaluate

Label = str | int


@dataclass(frozen=True, kw_only=True)
class MetricContext:
    """Settings that a figure may need besides predictions and references."""

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
"""(predictions, references, context) -> the figure; None where the references leave it undefined"""
