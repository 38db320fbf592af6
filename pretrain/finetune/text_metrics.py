"""Figures of texts, each of which has one reference or several."""

from collections.abc import Callable, Sequence
from typing import Any

from pretrain.evaluate.bleu import bleu, chrf
from pretrain.evaluate.rouge import rouge
from pretrain.evaluate.tasks.normalization import NORMALIZATIONS, word_f1
from pretrain.finetune.metric_context import Compute, MetricContext


def exact_match(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
    """The fraction of texts that are equal to any reference, after the normalization."""
    return _mean_of_best(lambda answer, reference: float(answer == reference), predictions, references, context)


def f1_of_tokens(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
    """The mean F1 of words against the best reference, after the normalization."""
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


def corpus_bleu(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
    """BLEU of the corpus, 0 to 1."""
    return bleu(predictions, [*map(any_of, references)], tokenize=context.bleu_tokenize).score / 100


def corpus_chrf(name: str) -> Compute:
    """The figure of that name of `evaluate.bleu.CHRF`, of the corpus, 0 to 1."""

    def compute(predictions: Sequence[str], references: Sequence[Any], _: MetricContext) -> float:
        return chrf(name, predictions, [*map(any_of, references)]).score / 100

    return compute


def mean_rouge(kind: str) -> Compute:
    """The mean F1 of that kind of ROUGE."""

    def compute(predictions: Sequence[str], references: Sequence[Any], context: MetricContext) -> float:
        texts = [*map(any_of, references)]
        return float(rouge(kind, predictions, texts, unicode_words=context.unicode_words).mean())

    return compute


def any_of(texts: Any) -> Sequence[str]:
    """The references of one example: a text alone is one reference, and no reference is the empty text."""
    return [texts] if isinstance(texts, str) else list(texts) or [""]
