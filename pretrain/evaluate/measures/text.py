"""Generated answers, compared with references of which any is right, after a task's filters and normalization.

An answer has at most the task's `max_gen_toks` tokens, as in lm-eval. Where nothing but white space stands between an
answer and the references, one that is longer than any of them is wrong whatever follows, so no more is generated, and
prompts have that much more room.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.decoding.base import Beam
from pretrain.evaluate.measures.base import ForTask, Outcome, Query, fraction, mean
from pretrain.evaluate.measures.text_metrics import TEXT_METRICS, references
from pretrain.evaluate.scorers.base import Scorer, answer_text
from pretrain.evaluate.tasks.base import TaskDocument
from pretrain.evaluate.tasks.normalization import word_f1

_NONE = -1  # after the last token


class TextMeasure:
    """See `base.Measure`. Results: `exact_match` and, where the task names them, `f1` (of words, the best reference of
    each document) and those of `text_metrics`; `answer_tokens`, the most tokens of an answer, and `answers_cut`, the
    number of answers that did not end before that and could have been right. A document's numbers are whether its
    answer is one of these, and its tokens."""

    name = "text"

    def __init__(self, about: ForTask, scorer: Scorer) -> None:
        self._task, self._tokenizer = about.task, scorer.tokenizer
        self._decoding = about.decoding or about.task.decoding
        # At most half of the model, so that a prompt has room.
        longest = min(about.task.max_gen_toks, max(1, scorer.length // 2))
        self._needed = None if self._is_judged_by_more() else max(map(_needed_tokens, about.documents))
        self.answer_tokens = longest if self._needed is None else min(longest, self._needed)
        self.width = 1 + self.answer_tokens

    def score(self, scorer: Scorer, queries: Sequence[Query]) -> NDArray[np.float64]:
        """See `base.Measure`."""
        numbers = np.full((len(queries), self.width), _NONE, np.float64)
        contexts = [one.prompt.pairs[0][0] for one in queries]
        answers = scorer.texts(contexts, self.answer_tokens, self._decoding, self._task.until)
        for row, answer in enumerate(answers):
            could_be_right = self._needed is None or len(answer.tokens) < self._needed
            numbers[row, 0] = not answer.ended and could_be_right
            numbers[row, 1 : 1 + len(answer.tokens)] = answer.tokens
        return numbers

    def outcome(self, numbers: NDArray[np.float64], document: TaskDocument) -> Outcome:
        """See `base.Measure`."""
        ids = [int(token) for token in numbers[1:] if token != _NONE]
        answer = answer_text(self._tokenizer, ids, self._task.until).strip()
        filtered = answer
        for response_filter in self._task.response_filters:
            filtered = response_filter(filtered)
        normalized = self._task.normalize(filtered)
        normal = [self._task.normalize(text) for text in references(document)]
        return {
            "answer": answer,
            "tokens": ids,
            "cut": bool(numbers[0]),
            "right": normalized in normal,
            "f1": max(word_f1(normalized.split(), text.split()) for text in normal),
        }

    def numbers(self, outcome: Outcome) -> Sequence[float]:
        """See `base.Measure`."""
        tokens = outcome["tokens"]
        return [outcome["cut"], *tokens, *[_NONE] * (self.answer_tokens - len(tokens))]

    def result(self, outcomes: Sequence[Outcome], documents: Sequence[TaskDocument]) -> dict[str, Any]:
        """See `base.Measure`."""
        result = fraction("exact_match", np.array([outcome["right"] for outcome in outcomes]))
        if "f1" in self._task.metrics:
            result |= mean("f1", np.array([outcome["f1"] for outcome in outcomes]))
        for name in self._task.metrics:
            if name in TEXT_METRICS:
                result |= TEXT_METRICS[name](outcomes, documents)
        cut = sum(outcome["cut"] for outcome in outcomes)
        return result | {"answer_tokens": self.answer_tokens, "answers_cut": cut}

    def _is_judged_by_more(self) -> bool:
        """Whether what follows after the length of the longest reference can change a result: filters and
        normalizations take parts of an answer, other metrics than exact match count all of it, and a beam compares
        hypotheses by their ends."""
        task = self._task
        return (
            bool(task.response_filters)
            or task.normalize is not str.strip
            or not {"f1", *TEXT_METRICS}.isdisjoint(task.metrics)
            or isinstance(self._decoding, Beam)
        )


def _needed_tokens(document: TaskDocument) -> int:
    """Tokens of the longest right answer, at most: as many as it has bytes, whatever the model spells it with, with the
    space before it, and one more for the stop after it."""
    space = document.target[: len(document.target) - len(document.target.lstrip())]
    return max(len((space + text.lstrip()).encode()) for text in references(document)) + 1
