"""Metrics of generated texts that need all of them, or a library.

- bleu: of the corpus, by sacrebleu, with its signature
- gleu: of corrections of the documents' `original` (JFLEG's)
- rouge1, rouge2, rougeL, rougeLsum: mean over documents, each against its best reference
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pretrain.evaluate.bleu import bleu
from pretrain.evaluate.gleu import gleu
from pretrain.evaluate.measures.base import Outcome, mean
from pretrain.evaluate.rouge import KINDS, rouge
from pretrain.evaluate.tasks.base import TaskDocument

_RESAMPLES = 1000  # of documents, for a standard error

TextMetric = Callable[[Sequence[Outcome], Sequence[TaskDocument]], dict[str, Any]]


def _bleu(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    of_all = bleu(_answers(outcomes), [references(document) for document in documents], _RESAMPLES)
    error = None if of_all.error is None else of_all.error / 100
    return {"bleu": of_all.score / 100, "bleu_stderr": error, "bleu_signature": of_all.signature}


def _gleu(outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    originals = [document.original for document in documents]
    score, error = gleu(_answers(outcomes), originals, [references(document) for document in documents])
    return {"gleu": score, "gleu_stderr": error}


def _rouge(kind: str, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    return mean(kind, rouge(kind, _answers(outcomes), [references(document) for document in documents]))


TEXT_METRICS: dict[str, TextMetric] = {
    "bleu": _bleu, "gleu": _gleu, **{kind: partial(_rouge, kind) for kind in KINDS}
}  # fmt: skip


def references(document: TaskDocument) -> Sequence[str]:
    """The answers that are right."""
    return document.references or (document.target,)


def _answers(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome["answer"] for outcome in outcomes]
