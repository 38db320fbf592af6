"""Chat templates (Jinja, as in Hugging Face's `apply_chat_template`): what they render of a conversation, and which
parts of that are responses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from data_pipeline.errors import DataError
from data_pipeline.recipes.template_environment import compile_template
from data_pipeline.tokenizers.base import Tokenizer

NOTHING: Mapping[str, Any] = MappingProxyType({})
_ERRORS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


@dataclass(frozen=True)
class TurnPart:
    """A part of a conversation."""

    text: str
    counts: bool
    """Whether the loss of its tokens counts."""


class ChatTemplate:
    """A Jinja template that renders a conversation."""

    def __init__(
        self, path: Path, tokenizer: Tokenizer, variables: Mapping[str, Any] = NOTHING, day: date | None = None
    ) -> None:
        """`variables` are given to every conversation, and take the place of names of special tokens (`bos_token`);
        `day` is the date that `strftime_now` formats. Raises DataError if the file can't be read, or is no template."""
        self._path = path
        try:
            source = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise DataError(f"The chat template {path} can't be read ({error}); give a text file.") from error
        self._source = source
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        self._special = tokenizer.special_pieces()
        by_length = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, by_length))})") if by_length else None
        names = {index: piece for piece, index in self._special.items()}
        self._given = {
            "tools": None,
            "documents": None,
            "bos_token": "" if tokenizer.begin_of_text is None else names.get(tokenizer.begin_of_text, ""),
            "eos_token": names.get(tokenizer.end_of_text, ""),
            **variables,
        }
        try:
            self._template = compile_template(source, day)
        except jinja2.TemplateError as error:
            raise DataError(f"The chat template {path} is no Jinja template ({error}); repair it.") from error

    @property
    def variables(self) -> frozenset[str]:
        """Names that it asks for beside the turns: `tools`, `documents`, switches."""
        return self._template.variables

    @property
    def marks_responses(self) -> bool:
        """Whether it says by `{% generation %}` which parts are responses."""
        return self._template.marks_responses

    def mentions(self, name: str) -> bool:
        """Whether its text has a name, such as that of a turn's key."""
        return name in self._source

    def special_piece_in(self, text: str) -> str | None:
        """A special piece that a text spells, and that would be taken for one that the template wrote; None: none."""
        match = self._split.search(text) if self._split else None
        return match[0] if match else None

    def pieces(self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] = NOTHING) -> list[TurnPart]:
        """A conversation up to its last response; the loss counts on what the turns of the role assistant add to what
        comes before them. Raises ValueError with the reason why it can't be rendered."""
        done, pieces = "", []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self.render(messages[:number], variables, opens_response=True)
                after = self.render(messages[: number + 1], variables)
                if not (before.startswith(done) and after.startswith(before)):
                    raise ValueError(
                        f"the chat template {self._path} changes what it renders of the turns before the turn {number} "
                        "when that is added, so that it is unknown which part is the response"
                    )
                pieces += [TurnPart(before[len(done) :], False), TurnPart(after[len(before) :], True)]
                done = after
        return pieces

    def marked_pieces(
        self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] = NOTHING
    ) -> list[TurnPart]:
        """A conversation, of which what the template marks by `{% generation %}` counts. Raises ValueError with the
        reason why it can't be rendered."""
        try:
            parts = list(self._template.render_marked(self._values(messages, variables, False)))
        except _ERRORS as error:
            raise self._refused(error) from error
        return [TurnPart(text, counts) for text, counts in parts if text]

    def question(self, messages: Sequence[dict[str, Any]]) -> str:
        """A conversation up to the beginning of the next response. Raises ValueError with the reason why it can't be
        rendered."""
        return self.render(messages, opens_response=True)

    def split(self, text: str) -> list[str | int]:
        """A rendered text as plain texts and the ids of the special pieces between them."""
        parts = self._split.split(text) if self._split else [text]
        return [self._special[part] if number % 2 else part for number, part in enumerate(parts) if part]

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] = NOTHING,
        *,
        opens_response: bool = False,
    ) -> str:
        """The text of a conversation, and with `opens_response` the beginning of the next response. Raises ValueError
        with the reason why it can't be rendered."""
        try:
            return self._template.render(self._values(messages, variables, opens_response))
        except _ERRORS as error:
            raise self._refused(error) from error

    def _values(
        self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any], opens_response: bool
    ) -> dict[str, Any]:
        own = {"messages": list(messages), "add_generation_prompt": opens_response}
        return {**self._given, **variables, **own}

    def _refused(self, error: Exception) -> ValueError:
        return ValueError(f"the chat template {self._path} can't render the conversation ({error})")
