"""Judged as a text by itself: its log probability, each token after those before it, from an end of text on.

A text longer than the model is read in windows that overlap by `context` tokens: a window's first tokens are only read,
so that every token is predicted exactly once, after at least that many (but at the text's beginning).

Standard errors are to first order, of a ratio of two sums (Cochran 1977, section 6.4): of log probabilities, and of
tokens, words, characters or bytes, over documents. A single text (all sentences of Penn Treebank) is taken apart into
its windows, with words, characters and bytes in proportion to tokens; neighbouring windows are of one text, so that its
error may be greater.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.writing.folding import unspaced_letters
from pretrain.evaluate.heldout import exp
from pretrain.evaluate.measures.base import ForTask, Outcome, Query
from pretrain.evaluate.scorers.base import Pair, Scorer
from pretrain.evaluate.tasks.base import TaskDocument


class PerplexityMeasure:
    """See `base.Measure`. Results: perplexity by token, word (of white space), character (code point) and byte.
    Where a document has a reference, that is the text before it was made readable, and words, characters and bytes are
    counted in it. `unspaced_texts`: documents most of whose letters are of scripts without spaces between words, which
    have no such words."""

    name, answer_tokens = "perplexity", 0

    def __init__(self, about: ForTask, scorer: Scorer) -> None:
        """Half of a window is context."""
        self._metrics = about.task.metrics
        self._scorer, self._length, self._context = scorer, scorer.length, scorer.length // 2
        alone = about.documents[0].target if len(about.documents) == 1 else None
        self._parts = 0 if alone is None else len(self._windows(alone))
        self.width = 2 * (1 + self._parts)

    def score(self, scorer: Scorer, queries: Sequence[Query]) -> NDArray[np.float64]:
        """See `base.Measure`."""
        texts = [self._windows(one.document.target) for one in queries]
        scored = iter(scorer.score([window for of_one in texts for window in of_one])[:, 0])
        numbers = np.zeros((len(queries), self.width))
        for row, of_one in enumerate(texts):
            parts = [(float(next(scored)), len(predicted)) for _, predicted in of_one]
            numbers[row, :2] = math.fsum(total for total, _ in parts), sum(tokens for _, tokens in parts)
            numbers[row, 2:] = np.array(parts).ravel()[: 2 * self._parts]
        return numbers

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """See `base.Measure`. `windows`, of a single text: log probability and tokens of each."""
        (total, tokens), *parts = numbers.reshape(-1, 2).tolist()
        windows = {"windows": [[total, int(count)] for total, count in parts]} if parts else {}
        return {"log_probability": total, "tokens": int(tokens), **windows}

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """See `base.Measure`."""
        return [outcome["log_probability"], outcome["tokens"], *np.ravel(outcome.get("windows", [])).tolist()]

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """See `base.Measure`."""
        counts = {
            "token": np.array([outcome["tokens"] for outcome in outcomes]),
            "word": np.array([len(_counted(document).split()) for document in documents]),
            "character": np.array([len(_counted(document)) for document in documents]),
            "byte": np.array([len(_counted(document).encode()) for document in documents]),
        }
        total = math.fsum(outcome["log_probability"] for outcome in outcomes)
        sums = np.array([outcome["log_probability"] for outcome in outcomes])
        shares = np.ones(1)
        if "windows" in outcomes[0]:
            sums, tokens = np.array(outcomes[0]["windows"]).T
            shares = tokens / tokens.sum()
        result: dict[str, Any] = {"log_probability_sum": total, "window": self._length, "window_context": self._context}
        for unit, count in counts.items():
            perplexity, error = exp(-total / max(1, count.sum())), _ratio_error(sums, count * shares)
            result |= {f"{unit}_count": int(count.sum()), f"{unit}_perplexity": perplexity}
            result[f"{unit}_perplexity_stderr"] = None if perplexity is None or error is None else perplexity * error
        for unit in ("byte", "character"):
            if (name := f"bits_per_{unit}") in self._metrics:
                nats, error = -total / max(1, counts[unit].sum()), _ratio_error(sums, counts[unit] * shares)
                result |= {name: nats / math.log(2), f"{name}_stderr": None if error is None else error / math.log(2)}
        if "word_perplexity" in self._metrics:
            letters = [unspaced_letters(_counted(document)) for document in documents]
            result["unspaced_texts"] = sum(2 * unspaced > every for unspaced, every in letters)
        return result

    def _windows(self, text: str) -> list[Pair]:
        before, ids = self._scorer.pair("", text)
        return list(windows(ids, before[-1], self._length, self._context))


def _ratio_error(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> float | None:
    """Standard error of sum(`sums`) / sum(`counts`), of documents each; None of fewer than two."""
    units, total = len(sums), counts.sum()
    if units < 2 or not total:
        return None
    rest = sums - sums.sum() / total * counts
    return math.sqrt(units / (units - 1) * float(rest @ rest)) / float(total)


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
