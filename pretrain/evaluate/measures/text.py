"""Generated answers, compared with references of which any is right, after a task's filters and normalization.

An answer has at most the task's `max_gen_toks` tokens, as in lm-eval. Where nothing but white space stands between an
answer and the references, one that is longer than any of them is wrong whatever follows, so no more is generated, and
prompts have that much more room.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.writing.folding import one_form
from pretrain.evaluate.decoding.base import Beam
from pretrain.evaluate.measures.base import ForTask, Outcome, Query, fraction, mean
from pretrain.evaluate.measures.text_metrics import TEXT_METRICS, references, unfit_texts, words_of
from pretrain.evaluate.scorers.base import Scorer, answer_text
from pretrain.evaluate.tasks.base import TaskDocument
from pretrain.evaluate.tasks.normalization import word_f1

_NONE = -1  # after the last token


class TextMeasure:
    """See `base.Measure`. Results: `exact_match` and, where the task names them, `f1` (of words, the best reference of
    each document) and those of `text_metrics`; `answer_tokens`, the most tokens of an answer, and `answers_cut`, the
    number of answers that did not end before that and could have been right. A document's numbers are whether its
    answer is one of these, and its tokens.

    Three counts say where rules that were made for English meet other text: `wrong_by_form`, answers that would be
    right if the task's rule read characters of every script; `unspaced`, documents whose references have letters of a
    script without spaces, where a metric takes what white space separates for a word; `letters_lost`, documents whose
    references have letters that rouge-score leaves out."""

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
        form = one_form if self._task.one_form else str
        normalized = self._task.normalize(self._filtered(form(answer)))
        normal = [self._task.normalize(form(text)) for text in references(document)]
        words = words_of(self._task)
        outcome = {
            "answer": answer,
            "tokens": ids,
            "cut": bool(numbers[0]),
            "right": normalized in normal,
            "f1": max(word_f1(words(normalized), words(text)) for text in normal),
        }
        by_form = not outcome["right"] and self._right_in_every_script(answer, references(document))
        return outcome | ({"wrong_by_form": True} if by_form else {})

    def _filtered(self, answer: str) -> str:
        for response_filter in self._task.response_filters:
            answer = response_filter(answer)
        return answer

    def _right_in_every_script(self, answer: str, texts: Sequence[str]) -> bool:
        normalize = self._task.every_script
        if normalize is None or (answer.isascii() and all(text.isascii() for text in texts)):
            return False
        return normalize(self._filtered(one_form(answer))) in [normalize(text) for text in texts]

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
                result |= TEXT_METRICS[name](self._task, outcomes, documents)
        cut = sum(outcome["cut"] for outcome in outcomes)
        result["wrong_by_form"] = sum(outcome.get("wrong_by_form", False) for outcome in outcomes)
        for name, is_unfit in unfit_texts(self._task).items():
            result[name] = sum(any(map(is_unfit, references(document))) for document in documents)
        return result | {"answer_tokens": self.answer_tokens, "answers_cut": cut}

    def _is_judged_by_more(self) -> bool:
        """Whether what follows after the length of the longest reference can change a result: filters and
        normalizations take parts of an answer, other metrics than exact match count all of it, and a beam compares
        hypotheses by their ends."""
        task = self._task
        return (
            bool(task.response_filters)
            or task.normalize is not str.strip
            or task.one_form
            or not {"f1", *TEXT_METRICS}.isdisjoint(task.metrics)
            or isinstance(self._decoding, Beam)
        )


def _needed_tokens(document: TaskDocument) -> int:
    """Tokens of the longest right answer, at most: as many as it has bytes, whatever the model spells it with, with the
    space before it, and one more for the stop after it."""
    space = document.target[: len(document.target) - len(document.target.lstrip())]
    return max(len((space + text.lstrip()).encode()) for text in references(document)) + 1
