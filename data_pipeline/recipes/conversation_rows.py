"""Rows of a prompt and its response, or of turns: checked, and read as the parts of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data_pipeline.dataset.source import LabelledSplit
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset, Row
from data_pipeline.recipes.chat_template import ChatTemplate, TurnPart
from data_pipeline.recipes.conversations import Dialogue, alpaca_prompt, read_turns, read_variables, text_of
from data_pipeline.recipes.unrendered import Unrendered


@dataclass(frozen=True, kw_only=True)
class ConversationRows:
    """Reader of rows: the fields that hold a conversation, and what renders it."""

    prompt: str
    input: str | None
    response: str
    messages: str | None
    """Field of the turns; None: `prompt`, `input` and `response` are the fields."""
    template: ChatTemplate | None
    marked: bool
    """Whether the loss counts on what the template marks as generated."""

    def read(self, dataset: LabelledDataset, split: LabelledSplit, seen: Unrendered | None) -> Iterator[list[TurnPart]]:
        """The parts of each conversation of a split; `seen` looks at them. Raises DataError with file and line if a row
        is no conversation, or the template can't render it."""
        for number, row in enumerate(dataset.rows(split)):
            try:
                self._check(dataset, split, number, row)
                pieces = self.pieces(row)
                if seen is not None:
                    dialogue = self._dialogue(row)
                    seen.look(dialogue, dialogue.turns if self.messages is None else row[self.messages])
            except ValueError as error:
                raise dataset.error(split, number, f"{error}.") from error
            yield pieces

    def pieces(self, row: Row) -> list[TurnPart]:
        """The parts of a row's conversation. Raises ValueError if it is none, or the template can't render it."""
        if self.template is None:
            return [TurnPart(self._prompt(row), False), TurnPart(row[self.response], True)]
        dialogue = self._dialogue(row)
        pieces = self.template.marked_pieces if self.marked else self.template.pieces
        return pieces(dialogue.turns, dialogue.variables)

    def question(self, row: Row) -> str:
        """All before the last response of a row, as text. Raises ValueError if the template can't render it."""
        if self.template is None:
            return self._prompt(row)
        dialogue = self._dialogue(row)
        if self.marked:
            return self.template.marked_question(dialogue.turns, dialogue.variables)
        return "".join(piece.text for piece in self.template.pieces(dialogue.turns, dialogue.variables)[:-1])

    def reference(self, row: Row) -> str:
        """The last response of a row: its text, or without one the calls of tools as the template renders them."""
        if self.messages is None:
            return str(row[self.response])
        responses = [turn for turn in read_turns(row[self.messages], self.messages) if turn["role"] == "assistant"]
        if text := text_of(responses[-1]):
            return text
        assert self.template is not None, "turns have one"
        rendered = [piece.text for piece in self.pieces(row) if piece.counts]
        return "".join(part for part in self.template.split(rendered[-1]) if isinstance(part, str)).strip()

    def _dialogue(self, row: Row) -> Dialogue:
        assert self.template is not None, "it renders the dialogue"
        own = {self.messages} if self.messages is not None else {self.prompt, self.input, self.response}
        variables = read_variables(row, self.template.variables - own)
        if self.messages is not None:
            return Dialogue(read_turns(row[self.messages], self.messages), variables).suited(self.template)
        turns = [
            {"role": "user", "content": self._prompt(row)},
            {"role": "assistant", "content": row[self.response]},
        ]
        return Dialogue(turns, variables)

    def _prompt(self, row: Row) -> str:
        """The prompt of a row without turns; with an input, alpaca's prompt unless a template renders both."""
        prompt: str = row[self.prompt]
        if self.input is None:
            return prompt
        more: str = row.get(self.input) or ""
        if self.template is None:
            return alpaca_prompt(prompt, more)
        return f"{prompt}\n{more}" if more else prompt

    def _check(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> None:
        """Raises DataError with file and line, or ValueError without, if a row is no conversation."""
        texts = self._texts(dataset, split, number, row)
        for what, text in texts.items():
            dataset.check_text(split, number, text, what)
        if self.template is None:
            return
        for what, text in [*texts.items(), *self._dialogue(row).texts(self.template)]:
            if piece := self.template.special_piece_in(dataset.check_characters(split, number, text, what)):
                raise dataset.error(
                    split, number, f"{what} holds {piece!r}, a special token of the tokenizer; take it out of the text."
                )

    def _texts(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row) -> dict[str, str]:
        """Description of each text of a conversation -> the text, but for contents that may be empty and are."""
        if self.messages is not None:
            turns = read_turns(dataset.field(split, number, row, self.messages), self.messages)
            if not any(turn["role"] == "assistant" for turn in turns):
                raise ValueError("no turn has the role assistant, so that there is nothing to learn")
            texts = {f"the content of the turn {n}": text_of(turn) for n, turn in enumerate(turns)}
            calls = {f"the content of the turn {n}" for n, turn in enumerate(turns) if turn.get("tool_calls")}
            return {what: text for what, text in texts.items() if text or what not in calls}
        for name in (self.prompt, self.response):
            if name not in row:
                raise self._lacks(dataset, split, number, row, name)
        texts = {f"the field {name!r}": row[name] for name in (self.prompt, self.response)}
        more = None if self.input is None else row.get(self.input)
        if more is not None and not (isinstance(more, str) and not more.strip()):  # which may be blank
            texts[f"the field {self.input!r}"] = more
        return texts

    def _lacks(self, dataset: LabelledDataset, split: LabelledSplit, number: int, row: Row, name: str) -> DataError:
        fields = ", ".join(row) or "none"
        return dataset.error(
            split,
            number,
            f"the row has no field {name!r}; its fields are {fields}: name that of turns in objective.messages "
            "(objective.messages=messages), or those of a prompt and its response in objective.prompt and "
            "objective.response.",
        )
