"""Conversations: the next token, of which only those of responses count (instruction tuning).

A prompt and its response are one text, or a chat template (Jinja, as in Hugging Face's `apply_chat_template`) renders
the turns. Packed, rows hold several conversations, each of which attends to itself alone (`best_fit.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.config import PathText
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.best_fit import Packing
from data_pipeline.recipes.chat_template import ChatTemplate, TurnPart
from data_pipeline.recipes.labelled import TOKENIZED_TOGETHER, LabelledObjective, LabelledRecipe
from data_pipeline.recipes.objective import ModelShape, NextTokenObjective
from data_pipeline.tokenizers.base import Tokenizer


class Instructions(LabelledObjective, NextTokenObjective):
    """The next token of responses to prompts (instruction tuning)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"decoder"})

    name: Literal["instructions"] = "instructions"
    prompt: str = Field(default="prompt", description="field that holds the prompt, where rows have no messages")
    response: str = Field(default="response", description="field that holds the response to the prompt")
    messages: str | None = Field(
        default=None,
        description="field that holds the turns of a conversation, [{role: user, content: ...}, ...], in place of "
        "prompt and response; loss counts on the turns of the role assistant",
    )
    chat_template: PathText | None = Field(
        default=None,
        description="file of the Jinja template that renders the turns, or a prompt and its response as two turns; "
        "default: the response follows the prompt as it is, and an end of text follows",
    )
    packing: Literal["best_fit", "rows"] | None = Field(
        default=None,
        description="best_fit: several conversations in a row, each of which attends to itself alone; rows: one in a "
        "row; default: best_fit where model.family can pack",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        return self.model_copy(update={"packing": self.packing or ("best_fit" if packing else "rows")})

    def settings(self) -> dict[str, Any]:
        """Without the path of the template, of which the recipe has the digest: machines may keep it elsewhere."""
        return {key: value for key, value in super().settings().items() if key != "chat_template"}

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> InstructionsRecipe:
        """See `Objective`."""
        template = None if self.chat_template is None else ChatTemplate(Path(self.chat_template), tokenizer)
        if template is None and self.messages is not None:
            raise DataError(
                "objective.messages needs a template that renders the turns: set objective.chat_template to its file."
            )
        return InstructionsRecipe(
            objective=self, sequence_length=sequence_length, tokenizer=tokenizer, template=template
        )


@dataclass(frozen=True)
class Conversation:
    """The tokens of a conversation."""

    ids: Ids
    counts: NDArray[np.bool_]
    """[tokens] whether the loss of each counts."""


@dataclass(frozen=True, kw_only=True)
class InstructionsRecipe(LabelledRecipe):
    """Rows of `sequence_length`. A conversation that is longer is cut off at its end."""

    objective: Instructions
    sequence_length: int
    template: ChatTemplate | None

    @property
    def target_length(self) -> int:
        """Each position has a label, which does not count unless it is a response's."""
        return self.sequence_length

    @property
    def vocabulary(self) -> int:
        """Ids of the tokenizer."""
        return self.tokenizer.vocabulary_size

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, and the digest of the template."""
        return {"objective": self.objective.settings(), "template": self.template and self.template.digest}

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> InstructionsSamples:
        """Raises DataError with file and line for a row without prompt or response, or that the template can't render;
        and if no response fits. Tokenizes each row once, to know its length."""
        lengths, cut, waiting = list[int](), list[bool](), list[list[TurnPart]]()

        def measure() -> None:
            for conversation in self._tokenize(waiting, threads=None):
                pairs = min(len(conversation.ids) - 1, self.sequence_length)
                lengths.append(pairs if conversation.counts[1 : pairs + 1].any() else 0)
                cut.append(pairs < len(conversation.ids) - 1)
            waiting.clear()

        for number, row in enumerate(dataset.rows(split)):
            self._check(dataset, split, number, row)
            try:
                waiting.append(self.pieces(row))
            except ValueError as error:
                raise dataset.error(split, number, f"{error}.") from error
            if len(waiting) == TOKENIZED_TOGETHER:
                measure()
        measure()
        sizes = np.array(lengths, np.int64)
        fitting = np.flatnonzero(sizes)
        if not len(fitting):
            raise DataError(
                f"No conversation of {dataset.path(split)} has a response within {self.sequence_length} positions; use "
                "longer sequences."
            )
        num_skipped = len(sizes) - len(fitting)
        packing = None
        if self.objective.packing == "best_fit":
            packing = Packing(fitting, sizes[fitting], self.sequence_length)
        return InstructionsSamples(
            dataset=dataset,
            split=split,
            recipe=self,
            fitting=fitting,
            packing=packing,
            num_skipped=num_skipped,
            num_cut=int(np.array(cut)[fitting].sum()),
        )

    def conversations(self, rows: Sequence[Row]) -> list[Conversation]:
        """The tokens of each row."""
        return self._tokenize([self.pieces(row) for row in rows], threads=1)

    def pieces(self, row: Row) -> list[TurnPart]:
        """The parts of a row's conversation. Raises ValueError if the template can't render it."""
        if self.template is None:
            return [TurnPart(row[self.objective.prompt], False), TurnPart(row[self.objective.response], True)]
        return self.template.pieces(self._messages(row))

    def reference(self, row: Row) -> str:
        """The last response of a row."""
        if self.objective.messages is None:
            return str(row[self.objective.response])
        return str([one["content"] for one in row[self.objective.messages] if one["role"] == "assistant"][-1])

    def _messages(self, row: Row) -> list[dict[str, Any]]:
        objective = self.objective
        if objective.messages is not None:
            messages: list[dict[str, Any]] = row[objective.messages]
            return messages
        return [
            {"role": "user", "content": row[objective.prompt]},
            {"role": "assistant", "content": row[objective.response]},
        ]

    def _check(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> None:
        """Raises DataError with file and line if a row is no conversation."""
        objective = self.objective
        if objective.messages is None:
            texts = {f"the field {name!r}": row.get(name) for name in (objective.prompt, objective.response)}
            for name in (objective.prompt, objective.response):
                dataset.text(split, number, row, name)
        else:
            messages = dataset.field(split, number, row, objective.messages)
            if not isinstance(messages, list) or not all(
                isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one for one in messages
            ):
                raise dataset.error(
                    split, number, f"the field {objective.messages!r} is not a list of turns with a role and a content."
                )
            if not any(one["role"] == "assistant" for one in messages):
                raise dataset.error(split, number, "no turn has the role assistant, so that there is nothing to learn.")
            texts = {f"the content of the turn {turn}": one["content"] for turn, one in enumerate(messages)}
            for what, text in texts.items():
                dataset.check_text(split, number, text, what)
        for what, text in texts.items():
            if self.template and (piece := self.template.special_piece_in(str(text))):
                raise dataset.error(
                    split, number, f"{what} holds {piece!r}, a special token of the tokenizer; take it out of the text."
                )

    def _tokenize(self, conversations: Sequence[list[TurnPart]], threads: int | None) -> list[Conversation]:
        parts: list[list[tuple[str | int, bool]]] = []
        for pieces in conversations:
            if self.template is None:
                parts.append([(piece.text, piece.counts) for piece in pieces])
            else:
                parts.append([(part, piece.counts) for piece in pieces for part in self.template.split(piece.text)])
        texts = [part for one in parts for part, _ in one if isinstance(part, str)]
        encoded = iter(self.encode(texts, threads))
        made = []
        for one in parts:
            ids, counts = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
            if self.template is None and self.tokenizer.begin_of_text is not None:
                one = [(self.tokenizer.begin_of_text, False), *one]
            if self.template is None:
                one = [*one, (self.tokenizer.end_of_text, True)]
            for part, counted in one:
                ids.append(np.array([part], np.int64) if isinstance(part, int) else next(encoded))
                counts.append(np.full(len(ids[-1]), counted))
            made.append(Conversation(np.concatenate(ids), np.concatenate(counts)))
        return made


@dataclass(frozen=True, kw_only=True)
class InstructionsSamples:
    """The conversations of a split, several in each row where they are packed. Holds 16 bytes for each."""

    dataset: LabelledDataset
    split: LabelledSplit
    recipe: InstructionsRecipe
    fitting: Ids
    """Numbers of the rows whose response fits."""
    packing: Packing | None = field(repr=False)
    num_skipped: int
    """Rows whose response does not fit."""
    num_cut: int
    """Other rows that are cut off at their end."""

    @property
    def count(self) -> int:
        """Rows of the model in an epoch."""
        return len(self.fitting) if self.packing is None else self.packing.count

    def row_number(self, number: int) -> int:
        """See `LabelledSamples`. Raises ValueError for packed samples, which are made of several rows."""
        if self.packing is not None:
            raise ValueError("a packed sample is made of several rows")
        return int(self.fitting[number])

    def rows(self, seed: int, ids: Ids) -> Rows:
        """What lengths a packed row holds follows from its number; which conversations of these, from seed, source and
        epoch too."""
        samples, rows = self._rows(seed, ids)
        shape, length = (len(ids), self.recipe.sequence_length), self.recipe.sequence_length
        tokens = np.full(shape, self.recipe.tokenizer.end_of_text, np.int64)
        labels, mask, documents = tokens.copy(), np.zeros(shape, np.float32), np.full(shape, -1, np.int64)
        used, held = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
        read = [self.dataset.row(self.split, number) for number in rows.tolist()]
        for sample, conversation in zip(samples.tolist(), self.recipe.conversations(read), strict=True):
            size = min(len(conversation.ids) - 1, length)
            cells = sample, slice(int(used[sample]), int(used[sample]) + size)
            tokens[cells], labels[cells] = conversation.ids[:size], conversation.ids[1 : size + 1]
            mask[cells], documents[cells] = conversation.counts[1 : size + 1], held[sample]
            used[sample] += size
            held[sample] += 1
        return Rows(tokens, labels, mask, documents=None if self.packing is None else documents)

    def token_spans(self, seed: int, ids: Ids) -> Ids:
        """The rows of each sample; spans of labelled data count rows."""
        samples, rows = self._rows(seed, ids)
        return np.stack([samples, rows, np.ones_like(rows)], axis=1)

    @property
    def answer_ends(self) -> frozenset[int]:
        """See `TextSamples`: the end of text, and the special pieces with which a template ends a turn."""
        tokenizer = self.recipe.tokenizer
        template = () if self.recipe.template is None else tokenizer.special_pieces().values()
        return frozenset({tokenizer.end_of_text, *template})

    def question(self, row_number: int, new_tokens: int) -> tuple[Ids, int]:
        """See `TextSamples`: all before the last response of a row."""
        (conversation,) = self.recipe.conversations([self.dataset.row(self.split, row_number)])
        last = np.flatnonzero(~conversation.counts)[-1:].tolist()
        if not last:  # the response is all that there is
            return np.empty(0, np.int64), self.recipe.tokenizer.before_text
        return conversation.ids[: last[0]], int(conversation.ids[last[0]])

    def references(self, row_number: int) -> list[str]:
        """See `TextSamples`: the last response of a row."""
        return [self.recipe.reference(self.dataset.row(self.split, row_number))]

    def _rows(self, seed: int, ids: Ids) -> tuple[Ids, Ids]:
        """(the index of its sample in `ids`, its number in the split) of each row that the samples are made of."""
        if self.packing is None:
            return np.arange(len(ids)), self.fitting[ids[:, 2]]
        samples, _, rows = self.packing.pieces(seed, ids)
        return samples, rows
