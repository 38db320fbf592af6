"""The span of a context that answers a question (SQuAD), by its first and last token (BERT: Devlin et al. 2019, section
4.2).

A context that is too long for a row becomes several samples, windows that overlap. For each window that does not hold
the answer, both positions are the first of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import SPAN_END, SPAN_START, Rows
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids, one_span_per_sample
from data_pipeline.recipes.input_format import JoinedTexts
from data_pipeline.recipes.labelled import FormatRecipe, PairObjective
from data_pipeline.recipes.objective import TaskHead
from data_pipeline.tokenizers.base import Tokenizer

TRIED_STARTS = 6
"""starts for which a conditional end is looked for: the first position, which means no answer, and the best five others
(XLNet: zihangdai/xlnet, run_squad.py)"""


class Spans(PairObjective):
    """The span of a context that answers a question."""

    cut_by: ClassVar[str] = "objective.max_question"
    field_keys: ClassVar[tuple[str, ...]] = ("question", "context", "answers")

    name: Literal["spans"] = "spans"
    question: str = Field(default="question", description="field that holds the question")
    context: str = Field(default="context", description="field that holds the text that answers it")
    answers: str = Field(
        default="answers",
        description='field that holds the answers, {"text": [...], "start": [...]}: texts, and the character of the '
        "context where each begins (answer_start, as SQuAD has it, is the same). The first is trained on; none: the "
        "context does not answer the question",
    )
    stride: int = Field(
        default=128, ge=0, description="tokens that consecutive windows of a long context have in common"
    )
    max_question: int = Field(default=64, ge=1, description="tokens after which a question is cut off")
    conditional_end: bool = Field(
        default=False,
        description="look for the last token of an answer given the first, whose state it reads (XLNet), instead of "
        "for each alone (BERT)",
    )

    @property
    def loss(self) -> str:
        """See `Objective`."""
        return "spans"

    @property
    def task_head(self) -> TaskHead:
        """See `Objective`: at each position a number for the first token of an answer, and one for the last, of a
        conditional end given the labelled first token; then for the last given each of the starts that are tried."""
        return TaskHead("span", 2 + TRIED_STARTS) if self.conditional_end else TaskHead("token", 2)

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> SpansRecipe:
        """See `Objective`."""
        inputs = self.input_format(tokenizer, sequence_length, target_length, decoder_only)
        inputs.check_lengths(2)
        tokenizer.encode_with_offsets("")  # raises DataError if it can't
        if inputs.max_text_tokens(2) - self.max_question <= self.stride:
            raise DataError(
                f"Beside a question of objective.max_question={self.max_question} tokens, {sequence_length} positions "
                f"have no space for windows that overlap by objective.stride={self.stride} tokens; lower one of these, "
                "or use longer sequences."
            )
        return SpansRecipe(objective=self, inputs=inputs, tokenizer=tokenizer)


@dataclass(frozen=True)
class Window:
    """One sample: a question and a part of its context."""

    joined: JoinedTexts
    offsets: NDArray[np.int64]
    """[tokens, 2] the characters of the context that each token of the part is made of."""

    @property
    def first(self) -> int:
        """The position of the part's first token."""
        return self.joined.starts[1]


@dataclass(frozen=True, kw_only=True)
class SpansRecipe(FormatRecipe):
    """Windows of contexts."""

    objective: Spans

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> SpansSamples:
        """Raises DataError with file and line for a row without question or context, or with an answer that is not in
        its context. Tokenizes each text once, to count windows."""
        objective, questions, contexts = self.objective, list[str](), dict[str, int]()
        context_of_row = np.empty(dataset.num_rows(split), np.int64)
        for number, row in enumerate(dataset.rows(split)):
            questions.append(dataset.text(split, number, row, objective.question))
            context = dataset.text(split, number, row, objective.context)
            self._check_answers(dataset, split, number, row, context)
            context_of_row[number] = contexts.setdefault(context, len(contexts))
        sizes, asked = self.sizes(list(contexts))[context_of_row], self.sizes(questions)
        free = self.inputs.max_text_tokens(2) - np.minimum(asked, objective.max_question)
        more = -(-np.maximum(sizes - free, 0) // (free - objective.stride))
        num_cut = int((asked > objective.max_question).sum())
        return SpansSamples(dataset, split, self, np.cumsum(1 + more), num_cut)

    def window(self, row: Row, number: int) -> Window:
        """The window `number` of a row, from 0."""
        question = self.encode([row[self.objective.question]])[0][: self.objective.max_question]
        ids, offsets = self.tokenizer.encode_with_offsets(row[self.objective.context])
        size = self.inputs.max_text_tokens(2) - len(question)
        begin = number * (size - self.objective.stride)
        part = slice(begin, begin + size)
        return Window(
            self.inputs.join([question, ids[part].astype(np.int64)]),
            _trimmed(row[self.objective.context], offsets[part]),
        )

    def answer_positions(self, row: Row, window: Window) -> tuple[int, int]:
        """The positions of the first answer's first and last token; (0, 0) where the window does not hold it all."""
        answers = row[self.objective.answers]
        if not answers["text"] or not len(window.offsets):
            return 0, 0
        begin = _starts(answers)[0]
        end = begin + len(answers["text"][0])
        starts, ends = window.offsets.T
        inside = np.flatnonzero((ends > begin) & (starts < end))
        context = row[self.objective.context]
        if not len(inside) or context[begin : starts[inside[0]]].strip() or context[ends[inside[-1]] : end].strip():
            return 0, 0
        return window.first + int(inside[0]), window.first + int(inside[-1])

    def _check_answers(
        self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row, context: str
    ) -> None:
        """Raises DataError with file and line if an answer is not in the context."""
        name = self.objective.answers
        answers = dataset.field(split, number, row, name)
        texts, starts = (answers.get("text"), _starts(answers)) if isinstance(answers, dict) else (None, None)
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise dataset.error(
                split,
                number,
                f'the field {name!r} is not {{"text": [...], "start": [...]}}, or {{"text": [...], "answer_start": '
                "[...]}, with as many texts as starts.",
            )
        for text, start in zip(texts, starts, strict=True):
            dataset.check_text(split, number, text, "an answer")
            if type(start) is not int or start < 0 or context[start : start + len(text)] != text:
                raise dataset.error(
                    split,
                    number,
                    f"the answer {text!r:.60} is not in its context at character {start!r:.20}; starts count "
                    "characters from 0.",
                )


@dataclass(frozen=True)
class SpansSamples:
    """The windows of a split. Holds 8 bytes for each row."""

    dataset: LabelledDataset
    split: LabelledSplit
    recipe: SpansRecipe
    ends: NDArray[np.int64]
    """[rows] the number of windows up to the end of each row."""
    num_cut: int
    """Rows whose question is cut off; contexts become windows."""
    num_skipped: ClassVar[int] = 0
    notes: ClassVar[tuple[str, ...]] = ()

    @property
    def count(self) -> int:
        """Windows in all."""
        return int(self.ends[-1])

    def row_number(self, number: int) -> int:
        """See `LabelledSamples`."""
        return int(np.searchsorted(self.ends, number, side="right"))

    def rows(self, seed: int, ids: Ids) -> Rows:
        """See `Samples`: nothing about them is drawn."""
        inputs, joined = self.recipe.inputs, []
        labels = np.zeros((len(ids), inputs.label_length), np.int64)
        mask = np.zeros(labels.shape, np.float32)  # one loss a row: of both ends, at the first of them
        for n, number in enumerate(ids[:, 2].tolist()):
            row, window = self._window(number)
            start, end = self.recipe.answer_positions(row, window)
            labels[n, start] |= SPAN_START
            labels[n, end] |= SPAN_END
            mask[n, start] = 1
            joined.append(window.joined)
        return Rows(**inputs.columns(joined), labels=labels, loss_mask=mask)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """The row of each window; spans of labelled data count rows."""
        return one_span_per_sample(np.searchsorted(self.ends, ids[:, 2], side="right"), 1)

    def answer(self, number: int, start: int, end: int) -> str:
        """The text of the context from the token at the position `start` of the sample `number` to that at `end`; empty
        unless both are of the context and in order, as of a question that it does not answer."""
        row, window = self._window(number)
        first, last = start - window.first, end - window.first
        if not 0 <= first <= last < len(window.offsets):
            return ""
        context: str = row[self.recipe.objective.context]
        return context[window.offsets[first, 0] : window.offsets[last, 1]]

    def context_positions(self, number: int) -> range:
        """The positions of the sample `number` that hold its context: those that an answer can have."""
        _, window = self._window(number)
        return range(window.first, window.first + len(window.offsets))

    def references(self, row_number: int) -> list[str]:
        """The answers of a row; empty where its context does not answer the question."""
        row = self.dataset.row(self.split, row_number)
        texts: list[Any] = row[self.recipe.objective.answers]["text"]
        return [str(text) for text in texts]

    def _window(self, number: int) -> tuple[Row, Window]:
        row_number = self.row_number(number)
        row = self.dataset.row(self.split, row_number)
        before = int(self.ends[row_number - 1]) if row_number else 0
        return row, self.recipe.window(row, number - before)


def _starts(answers: dict[str, Any]) -> Any:
    """Where answers begin."""
    return answers["start"] if "start" in answers else answers.get("answer_start")


def _trimmed(text: str, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets [tokens, 2] without white space (Unicode's) at either end, as far as a token has anything else."""
    trimmed = offsets.copy()
    for token, (begin, end) in enumerate(offsets.tolist()):
        characters = text[begin:end]
        if characters and not characters.isspace():
            trimmed[token] = end - len(characters.lstrip()), begin + len(characters.rstrip())
    return trimmed
