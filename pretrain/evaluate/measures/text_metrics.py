"""Metrics of generated texts that need all of them, or a library.

- bleu, chrf, chrf++: of the corpus, by sacrebleu, with its signature
- gleu: of corrections of the documents' `original` (JFLEG's)
- rouge1, rouge2, rougeL, rougeLsum: mean over documents, each against its best reference
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from data_pipeline.writing.folding import is_unspaced, spaced
from pretrain.evaluate.bleu import BY_SPACE, CHRF, CorpusScore, bleu, chrf
from pretrain.evaluate.gleu import gleu
from pretrain.evaluate.measures.base import Outcome, mean
from pretrain.evaluate.rouge import KINDS, loses_letters, rouge
from pretrain.evaluate.tasks.base import Task, TaskDocument
from pretrain.evaluate.tasks.normalization import NORMALIZATIONS, PUTS_SPACES

_RESAMPLES = 1000  # of documents, for a standard error

TextMetric = Callable[[Task, Sequence[Outcome], Sequence[TaskDocument]], dict[str, Any]]


def _bleu(task: Task, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    texts = [references(document) for document in documents]
    return _corpus_metrics("bleu", bleu(_answers(outcomes), texts, _RESAMPLES, tokenize=task.bleu_tokenize))


def _chrf(name: str, task: Task, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    texts = [references(document) for document in documents]
    return _corpus_metrics(name, chrf(name, _answers(outcomes), texts, _RESAMPLES))


def _corpus_metrics(name: str, of_all: CorpusScore) -> dict[str, Any]:
    error = None if of_all.error is None else of_all.error / 100
    return {name: of_all.score / 100, f"{name}_stderr": error, f"{name}_signature": of_all.signature}


def _gleu(task: Task, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    originals = [document.original for document in documents]
    texts = [references(document) for document in documents]
    score, error = gleu(_answers(outcomes), originals, texts, words_of(task))
    return {"gleu": score, "gleu_stderr": error}


def _rouge(kind: str, task: Task, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
    texts = [references(document) for document in documents]
    return mean(kind, rouge(kind, _answers(outcomes), texts, unicode_words=task.unicode_words))


TEXT_METRICS: dict[str, TextMetric] = {
    "bleu": _bleu,
    **{name: partial(_chrf, name) for name in CHRF},
    "gleu": _gleu,
    **{kind: partial(_rouge, kind) for kind in KINDS},
}


def words_of(task: Task) -> Callable[[str], list[str]]:
    """Function that splits a text into the words that F1 and GLEU of a task count."""
    return (lambda text: spaced(text).split()) if task.unicode_words else str.split


def references(document: TaskDocument) -> Sequence[str]:
    """The answers that are right."""
    return document.references or (document.target,)


def _answers(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome["answer"] for outcome in outcomes]


def unfit_texts(task: Task) -> dict[str, Callable[[str], bool]]:
    """Name of a count of documents -> whether a reference is one that a metric of the task, as it is set, was not made
    for."""
    puts_spaces = task.normalize in [NORMALIZATIONS[name] for name in PUTS_SPACES]
    by_space = ("bleu" in task.metrics and task.bleu_tokenize in BY_SPACE) or (
        not task.unicode_words and ("gleu" in task.metrics or ("f1" in task.metrics and not puts_spaces))
    )
    by_rouge = not task.unicode_words and not set(KINDS).isdisjoint(task.metrics)
    counts = (("unspaced", is_unspaced, by_space), ("letters_lost", loses_letters, by_rouge))
    return {name: is_unfit for name, is_unfit, counted in counts if counted}
