"""Generated answers, compared with references of which any is right, after a task's filters and normalization."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.measures.base import ForTask, Outcome, Query, fraction, mean
from pretrain.evaluate.measures.text_metrics import TEXT_METRICS, references
from pretrain.evaluate.scorers.base import Scorer, answer_text
from pretrain.evaluate.tasks.base import TaskDocument
from pretrain.evaluate.tasks.normalization import word_f1

_NONE = -1  # after the last token


class TextMeasure:
    """See `base.Measure`. Results: `exact_match` and, where the task names them, `f1` (of words, the best reference of
    each document) and those of `text_metrics`."""

    name = "text"

    def __init__(self, about: ForTask, scorer: Scorer) -> None:
        self._task, self._tokenizer = about.task, scorer.tokenizer
        self._decoding = about.decoding or about.task.decoding
        # An answer has no more tokens than bytes, whatever the model spells it with; one more for the stop after it.
        needed = max(len(text.encode()) for d in about.documents for text in references(d)) + 1
        # At most half of the model, so that a prompt has room.
        self.answer_tokens = self.width = min(needed, about.task.max_gen_toks or needed, max(1, scorer.length // 2))

    def score(self, scorer: Scorer, queries: Sequence[Query]) -> NDArray[np.float64]:
        """See `base.Measure`."""
        numbers = np.full((len(queries), self.width), _NONE, np.float64)
        contexts = [one.prompt.pairs[0][0] for one in queries]
        for row, ids in enumerate(scorer.texts(contexts, self.answer_tokens, self._decoding, self._task.until)):
            numbers[row, : len(ids)] = ids
        return numbers

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """See `base.Measure`."""
        ids = [int(token) for token in numbers if token != _NONE]
        answer = answer_text(self._tokenizer, ids, self._task.until).strip()
        filtered = answer
        for response_filter in self._task.response_filters:
            filtered = response_filter(filtered)
        normalized = self._task.normalize(filtered)
        normal = [self._task.normalize(text) for text in references(document)]
        return {
            "answer": answer,
            "tokens": ids,
            "right": normalized in normal,
            "f1": max(word_f1(normalized.split(), text.split()) for text in normal),
        }

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """See `base.Measure`."""
        return [*outcome["tokens"], *[_NONE] * (self.width - len(outcome["tokens"]))]

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """See `base.Measure`."""
        result = fraction("exact_match", np.array([outcome["right"] for outcome in outcomes]))
        if "f1" in self._task.metrics:
            result |= mean("f1", np.array([outcome["f1"] for outcome in outcomes]))
        for name in self._task.metrics:
            if name in TEXT_METRICS:
                result |= TEXT_METRICS[name](outcomes, documents)
        return result
