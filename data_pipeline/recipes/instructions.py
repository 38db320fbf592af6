"""Conversations: the next token, of which only those of responses count (instruction tuning).

A prompt and its response are one text, or a chat template (Jinja, as in Hugging Face's `apply_chat_template`) renders
the turns. Packed, rows hold several conversations, each of which attends to itself alone (`best_fit.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from data_pipeline.batch import Rows
from data_pipeline.config import PathText
from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.best_fit import Packing
from data_pipeline.recipes.chat_template import ChatTemplate, TurnPart
from data_pipeline.recipes.conversation_encoder import Conversation, ConversationEncoder
from data_pipeline.recipes.conversation_rows import ConversationRows
from data_pipeline.recipes.conversations import VARIABLES, found_fields
from data_pipeline.recipes.labelled import TOKENIZED_TOGETHER, LabelledObjective, LabelledRecipe
from data_pipeline.recipes.objective import ModelShape, NextTokenObjective
from data_pipeline.recipes.unrendered import Unrendered
from data_pipeline.tokenizers.base import Tokenizer

_AS_A_WHOLE, _TURNS = "text as a whole", "turns as transformers passes them"
"""annotations where samples are others than runs once read, and no names of variables"""


class Instructions(LabelledObjective, NextTokenObjective):
    """The next token of responses to prompts (instruction tuning)."""

    suits: ClassVar[frozenset[ModelShape]] = frozenset({"decoder"})
    field_keys: ClassVar[tuple[str, ...]] = ("prompt", "input", "response")

    name: Literal["instructions"] = "instructions"
    prompt: str = Field(default="prompt", description="field that holds the prompt, where rows have no messages")
    response: str = Field(default="response", description="field that holds the response to the prompt")
    input: str | None = Field(
        default=None,
        description="field that holds what a prompt is about, which may be empty (alpaca); default: none, or input "
        "where rows have the fields instruction and output in place of prompt and response",
    )
    messages: str | None = Field(
        default=None,
        description="field that holds the turns of a conversation, [{role: user, content: ...}, ...] or [{from: human, "
        "value: ...}, ...], in place of prompt and response; loss counts on the turns of the role assistant; default: "
        "none, or messages or conversations where rows have one of these in place of prompt and response",
    )
    chat_template: PathText | None = Field(
        default=None,
        description="file of the Jinja template that renders the turns, or a prompt and its response as two turns; "
        "default: the response follows the prompt as it is, and an end of text follows",
    )
    template_variables: dict[str, Any] = Field(
        default={},
        description="variables of the chat template that all rows share, such as {enable_thinking: false}; fields of a "
        "row that are named as a variable (tools, documents), and its chat_template_kwargs, take their place",
    )
    date: datetime.date | None = Field(
        default=None,
        description="date that strftime_now gives in the chat template, such as 2024-07-26: samples do not depend on "
        "the day; default: none, so that a template that needs it is refused",
    )
    loss_on: Literal["turns", "generation"] = Field(
        default="turns",
        description="responses in what a chat template renders; turns: what turns of the role assistant add; "
        "generation: what the template marks by {% generation %}",
    )
    packing: Literal["best_fit", "rows"] | None = Field(
        default=None,
        description="best_fit: several conversations in a row, each of which attends to itself alone; rows: one in a "
        "row; default: best_fit where model.family can pack",
    )

    def for_model(self, shape: ModelShape, *, input_format: str | None, segments: bool, packing: bool) -> Self:
        """See `Objective`."""
        return self.model_copy(update={"packing": self.packing or ("best_fit" if packing else "rows")})

    @property
    def fields(self) -> frozenset[str]:
        """See `LabelledObjective`."""
        return super().fields if self.messages is None else frozenset({self.messages})

    def template(self, path: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The chat template of a file, with these settings' variables and date."""
        return ChatTemplate(path, tokenizer, self.template_variables, self.date)

    def for_rows(self, row: Row) -> Self:
        """A copy that names the fields of `row`, the first of the data, where the settings name none and it has those
        of a known format in place of a prompt and its response."""
        names = ("prompt", "input", "response", "messages")
        if any(getattr(self, name) != type(self).model_fields[name].default for name in names):
            return self
        return self if {self.prompt, self.response} <= row.keys() else self.model_copy(update=found_fields(row))

    def settings(self) -> dict[str, Any]:
        """Without the path of the template, of which the recipe has the digest: machines may keep it elsewhere."""
        return {key: value for key, value in super().settings().items() if key != "chat_template"}

    def recipe(
        self, tokenizer: Tokenizer, sequence_length: int, target_length: int | None = None, decoder_only: bool = False
    ) -> InstructionsRecipe:
        """See `Objective`."""
        template = None if self.chat_template is None else self.template(Path(self.chat_template), tokenizer)
        if template is None and self.messages is not None:
            raise DataError(
                "objective.messages needs a template that renders the turns: set objective.chat_template to its file."
            )
        asked = frozenset() if template is None else template.variables
        if unknown := sorted(self.template_variables.keys() - asked):
            raise DataError(
                f"objective.template_variables has {', '.join(unknown)}, for which the chat template does not ask; it "
                f"asks for {', '.join(sorted(asked)) or 'none'}."
            )
        if self.loss_on == "generation" and (template is None or not template.marks_responses):
            raise DataError(
                "objective.loss_on=generation needs a chat template that marks responses by {% generation %}: leave "
                "it out, or name such a template in objective.chat_template."
            )
        return InstructionsRecipe(
            objective=self, sequence_length=sequence_length, tokenizer=tokenizer, template=template
        )


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
    def fields(self) -> frozenset[str]:
        """See `LabelledRecipe`: also those that the template asks for."""
        return super().fields | (frozenset() if self.template is None else self.template.variables | {VARIABLES})

    @property
    def reader(self) -> ConversationRows:
        """Reader of rows."""
        names = {name: getattr(self.objective, name) for name in ("prompt", "input", "response", "messages")}
        return ConversationRows(**names, template=self.template, marked=self.objective.loss_on == "generation")

    @property
    def _encoder(self) -> ConversationEncoder:
        return ConversationEncoder(self.tokenizer, self.template)

    @property
    def settings(self) -> dict[str, Any]:
        """The objective, and the digest of the template."""
        return {"objective": self.objective.settings(), "template": self.template and self.template.digest}

    def make_samples(self, dataset: LabelledDataset, split: LabelledSplit) -> InstructionsSamples:
        """Raises DataError with file and line for a row without prompt or response, or that the template can't render;
        and if no response fits. Tokenizes each row once, to know its length."""
        lengths, cut, waiting = list[int](), list[bool](), list[list[TurnPart]]()
        marked = self.objective.loss_on == "generation"
        seen = None if self.template is None else Unrendered(self.template, marked)

        annotations = set[str]()

        def measure() -> None:
            made = self._encoder.encode(waiting, threads=None)
            if self.template is not None:
                self._check_special(dataset, split, len(lengths), waiting, made)
                if not annotations:
                    in_parts = self._encoder.encode_in_parts(waiting, threads=None)
                    annotations.update([] if all(map(Conversation.is_same, made, in_parts)) else [_AS_A_WHOLE])
            for conversation in made:
                pairs = min(len(conversation.ids) - 1, self.sequence_length)
                lengths.append(pairs if conversation.counts[1 : pairs + 1].any() else 0)
                cut.append(pairs < len(conversation.ids) - 1)
            waiting.clear()

        for pieces in self.reader.read(dataset, split, seen):
            waiting.append(pieces)
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
            notes=() if seen is None else seen.sentences(),
            annotations=sorted(annotations | self._readings(seen)),
        )

    def _readings(self, seen: Unrendered | None) -> set[str]:
        """Annotations of how rows are read where that changes what a template renders."""
        return set() if seen is None else seen.variables | ({_TURNS} if seen.reads_otherwise else set())

    def conversations(self, rows: Sequence[Row]) -> list[Conversation]:
        """The tokens of each row."""
        reader = self.reader
        return self._encoder.encode([reader.pieces(row) for row in rows], threads=1)

    def _check_special(
        self,
        dataset: LabelledDataset,
        split: LabelledSplit,
        first: int,
        conversations: Sequence[list[TurnPart]],
        made: Sequence[Conversation],
    ) -> None:
        """Raises DataError with file and line for a text that the tokenizer takes for a special token; `first` is the
        number of the first row."""
        assert self.template is not None, "it writes special tokens"
        for number, (pieces, one) in enumerate(zip(conversations, made, strict=True), first):
            assert one.offsets is not None, "of a template"
            text = "".join(piece.text for piece in pieces)
            if (taken := self.template.forged(text, one.ids, one.offsets)) is not None:
                raise dataset.error(
                    split, number, f"the tokenizer takes {taken!r} for a special token; take it out of the text."
                )

    def question(self, row: Row) -> Ids:
        """The tokens of all before the last response of a row. Raises ValueError if the template can't render it."""
        return self._encoder.encode_question(self.reader.question(row))


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
    notes: tuple[str, ...]
    """See `LabelledSamples`."""
    annotations: list[str]
    """Part of the fingerprint of an order of samples: the variables that rows give, and whether the ids of a
    conversation are others than those of its parts. At first there were none of either."""

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
        """The lengths of a packed row's conversations follow from its number; which conversations of these lengths,
        from seed, source and epoch too."""
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
        try:
            ids = self.recipe.question(self.dataset.row(self.split, row_number))
        except ValueError as error:
            raise self.dataset.error(self.split, row_number, f"{error}.") from error
        if not len(ids):  # the response is all that there is
            return ids, self.recipe.tokenizer.before_text
        return ids[:-1], int(ids[-1])

    def references(self, row_number: int) -> list[str]:
        """See `TextSamples`: the last response of a row."""
        return [self.recipe.reader.reference(self.dataset.row(self.split, row_number))]

    def _rows(self, seed: int, ids: Ids) -> tuple[Ids, Ids]:
        """(the index of its sample in `ids`, its number in the split) of each row that the samples are made of."""
        if self.packing is None:
            return np.arange(len(ids)), self.fitting[ids[:, 2]]
        samples, _, rows = self.packing.pieces(seed, ids)
        return samples, rows
