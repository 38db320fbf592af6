"""Judged as a text by itself: its log probability, each token after those before it, from an end of text on.

A text longer than the model is read in windows that overlap by `context` tokens: a window's first tokens are only read,
so that every token is predicted exactly once, after at least that many (but at the text's beginning).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.heldout import exp
from pretrain.evaluate.measures.base import Asked, ForTask, Outcome
from pretrain.evaluate.scorers.base import Pair, Scorer
from pretrain.evaluate.tasks.base import TaskDocument


class PerplexityMeasure:
    """See `base.Measure`. Results: perplexity by token, word (of white space) and byte. Where a document has a
    reference, that is the text before it was made readable, and words and bytes are counted in it."""

    name, width, answer_tokens = "perplexity", 2, 0

    def __init__(self, about: ForTask, scorer: Scorer) -> None:
        """Half of a window is context."""
        self._tokenizer, self._length, self._context = scorer.tokenizer, scorer.length, scorer.length // 2

    def ask(self, scorer: Scorer, asked: Sequence[Asked]) -> NDArray[np.float64]:
        """See `base.Measure`."""
        texts = [self._tokenizer.encode(one.document.target) for one in asked]
        found = [list(windows(ids, self._tokenizer.before_text, self._length, self._context)) for ids in texts]
        scored = iter(scorer.score([window for of_one in found for window in of_one])[:, 0])
        sums = [math.fsum(next(scored) for _ in of_one) for of_one in found]
        return np.array([(total, len(ids)) for total, ids in zip(sums, texts, strict=True)]).reshape(-1, 2)

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """See `base.Measure`."""
        return {"log_probability": float(numbers[0]), "tokens": int(numbers[1])}

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """See `base.Measure`."""
        return [outcome["log_probability"], outcome["tokens"]]

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """See `base.Measure`."""
        total = math.fsum(outcome["log_probability"] for outcome in outcomes)
        counts = {
            "token": sum(outcome["tokens"] for outcome in outcomes),
            "word": sum(len(_counted(document).split()) for document in documents),
            "byte": sum(len(_counted(document).encode()) for document in documents),
        }
        found: dict[str, Any] = {"log_probability_sum": total, "window": self._length, "window_context": self._context}
        for unit, count in counts.items():
            found |= {f"{unit}_count": count, f"{unit}_perplexity": exp(-total / max(1, count))}
            found[f"{unit}_perplexity_stderr"] = None
        return found


def _counted(document: TaskDocument) -> str:
    return document.references[0] if document.references else document.target


def windows(ids: Sequence[int], first: int, length: int, context: int) -> Iterator[Pair]:
    """(read, predicted) parts of `ids`, which follow `first`, for a model of `length` positions: each predicts as much
    as fits after `context` tokens, the first one as much as fits at all."""
    text, done = [first, *ids], 1
    while done < len(text):
        end = min(len(text), length + 1 if done == 1 else done + length + 1 - context)
        begin = max(0, end - length - 1)
        yield text[begin:done], text[done:end]
        done = end
