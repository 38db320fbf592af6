"""Answers for a row, from the numbers of a task head: a class, a number, a tag for each word, a text of its context, or
a choice."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.batch import RIGHT_CHOICE, Rows
from data_pipeline.recipes.base import Samples
from data_pipeline.recipes.choice import ChoiceSamples
from data_pipeline.recipes.spans import SpansSamples
from data_pipeline.recipes.tagging import TaggingSamples

_LONGEST_ANSWER = 30
"""tokens of a span (BERT's run_squad.py)"""
_OUTSIDE = "O"
Outputs = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class RowAnswer:
    """The answer for one row, or what one window of it says."""

    number: int
    """number of the row in its split, from 0"""
    predicted: Any
    """a class, a number, a tag for each word, a text, or the number of a choice"""
    expected: Any
    """the row's own answer; of texts, any of a list is right"""
    confidence: float | None = None
    """probability of a predicted class or choice; None for other answers"""
    score: float = 0.0
    """logits of a span, by which windows of a row are compared"""
    no_answer: float = 0.0
    """logits of the first position, which means no answer"""


Read = Callable[[int, Rows, Outputs], RowAnswer]
"""(number of a sample, its row, its outputs [L, K]) -> the answer"""


def reader(samples: Samples, loss: str, labels: Sequence[str | int]) -> Read:
    """The function that reads the answers of a split's samples."""
    if isinstance(samples, SpansSamples):
        return lambda number, row, outputs: _span(samples, number, row, outputs)
    if isinstance(samples, TaggingSamples):
        return lambda number, row, outputs: _tags(samples, number, outputs, labels)
    if isinstance(samples, ChoiceSamples):
        return lambda number, row, outputs: _choice(samples, number, row, outputs)
    if loss == "regression":
        return _number
    return lambda number, row, outputs: _class(number, row, outputs, labels)


def by_row(answers: Iterable[RowAnswer]) -> list[RowAnswer]:
    """One answer for each row, in order. Of several windows, that of the highest score; none if there is a row without
    an answer, and the least that a window has for "no answer" is more."""
    windows: dict[int, list[RowAnswer]] = {}
    for answer in answers:
        windows.setdefault(answer.number, []).append(answer)
    some_have_none = any(of_row[0].expected == [""] for of_row in windows.values())
    chosen = []
    for number in sorted(windows):
        best = max(windows[number], key=lambda one: one.score)
        no_answer = min(one.no_answer for one in windows[number])
        empty = some_have_none and no_answer > best.score
        chosen.append(RowAnswer(number=number, predicted="", expected=best.expected) if empty else best)
    return chosen


def _class(number: int, row: Rows, outputs: Outputs, labels: Sequence[str | int]) -> RowAnswer:
    (place,) = np.flatnonzero(row.loss_mask[0] > 0)
    logits = outputs[place].astype(np.float64)
    chosen = int(logits.argmax())
    probability = float(1 / np.exp(logits - logits[chosen]).sum())
    return RowAnswer(
        number=number,
        predicted=labels[chosen],
        expected=labels[int(row.labels[0, place])],
        confidence=probability,
    )


def _choice(samples: ChoiceSamples, number: int, row: Rows, outputs: Outputs) -> RowAnswer:
    """The number of the choice with the largest output; the right one's where its text is the same."""
    places = np.flatnonzero(row.labels[0])
    logits = outputs[places, 0].astype(np.float64)
    chosen = int(logits.argmax())
    expected = int(np.flatnonzero(row.labels[0, places] == RIGHT_CHOICE)[0])
    texts = samples.choices(number)
    return RowAnswer(
        number=number,
        predicted=expected if texts[chosen] == texts[expected] else chosen,
        expected=expected,
        confidence=float(1 / np.exp(logits - logits[chosen]).sum()),
    )


def _number(number: int, row: Rows, outputs: Outputs) -> RowAnswer:
    (place,) = np.flatnonzero(row.loss_mask[0] > 0)
    assert row.targets is not None, "a regression has them"
    return RowAnswer(number=number, predicted=float(outputs[place, 0]), expected=float(row.targets[0, place]))


def _tags(samples: TaggingSamples, number: int, outputs: Outputs, labels: Sequence[str | int]) -> RowAnswer:
    """A word that has no position in the row, which a model cannot tag, is taken to be outside of all entities, or to
    have the first tag where there is no O."""
    unseen = _OUTSIDE if _OUTSIDE in labels else labels[0]
    predicted = [
        labels[int(outputs[place].argmax())] if place >= 0 else unseen
        for place in samples.word_positions(number).tolist()
    ]
    return RowAnswer(
        number=number, predicted=predicted, expected=[labels[tag] for tag in samples.tags(number).tolist()]
    )


def _span(samples: SpansSamples, number: int, row: Rows, outputs: Outputs) -> RowAnswer:
    """The span of the context whose first and last token have the highest sum of logits, or of the log probabilities of
    a first token and, given that, the last one."""
    if samples.recipe.objective.conditional_end:
        return _conditional_span(samples, number, row, outputs)
    places = samples.context_positions(number)
    row_number = samples.row_number(number)
    expected = samples.references(row_number) or [""]
    no_answer = float(outputs[0].sum())
    if not len(places):
        return RowAnswer(number=row_number, predicted="", expected=expected, score=-np.inf, no_answer=no_answer)
    first, last = outputs[places.start : places.stop].T.astype(np.float64)
    every = np.arange(len(places))
    sums = np.where(_may_be_last(every[:, None], every), first[:, None] + last, -np.inf)
    begin, end = np.unravel_index(int(sums.argmax()), sums.shape)
    text = samples.answer(number, places.start + int(begin), places.start + int(end))
    return RowAnswer(
        number=row_number,
        predicted=text,
        expected=expected,
        score=float(sums[begin, end]),
        no_answer=no_answer,
    )


def _conditional_span(samples: SpansSamples, number: int, row: Rows, outputs: Outputs) -> RowAnswer:
    """The best of the spans whose starts were tried (see `pretrain.models.span_head.tried_starts`)."""
    places, row_number = samples.context_positions(number), samples.row_number(number)
    seen = np.ones(len(outputs), bool) if row.attention_mask is None else row.attention_mask[0]
    logits = np.where(seen[:, None], outputs.astype(np.float64), -np.inf)
    first, tried = _log_softmax(logits[:, 0]), _log_softmax(logits[:, 2:])
    starts = [0, *np.argsort(-logits[:, 0], kind="stable")[: tried.shape[1] - 1].tolist()]
    every, found = np.arange(len(outputs)), (-np.inf, 0, 0)
    for column, start in enumerate(starts):
        if start in places:
            ends = np.where(
                (every < places.stop) & _may_be_last(start, every), first[start] + tried[:, column], -np.inf
            )
            found = max(found, (float(ends.max()), start, int(ends.argmax())))
    score, start, end = found
    return RowAnswer(
        number=row_number,
        predicted=samples.answer(number, start, end) if start in places else "",
        expected=samples.references(row_number) or [""],
        score=score,
        no_answer=float(first[0] + tried[0, 0]),
    )


def _may_be_last(start: Any, position: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a span of a context that begins at `start` may end at `position`."""
    may: NDArray[np.bool_] = (position >= start) & (position < start + _LONGEST_ANSWER)
    return may


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over positions, the first axis."""
    above = logits - logits.max(axis=0)
    found: NDArray[np.float64] = above - np.log(np.exp(above).sum(axis=0))
    return found
