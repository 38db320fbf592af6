"""Chat templates (Jinja, as in Hugging Face's `apply_chat_template`): what they render of a conversation, and which
parts of that are responses."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from data_pipeline.errors import DataError
from data_pipeline.tokenizers.base import Tokenizer


class _Generation(Extension):
    """The tag that marks responses in some templates, which changes nothing that they render."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tag and its end."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True)
class TurnPart:
    """A part of a conversation."""

    text: str
    counts: bool
    """Whether the loss of its tokens counts."""


class ChatTemplate:
    """A Jinja template that renders a conversation."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        """Raises DataError if the file can't be read, or is no template."""
        self._path = path
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise DataError(f"The chat template {path} can't be read ({error}); give a text file.") from error
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        self._special = tokenizer.special_pieces()
        by_length = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, by_length))})") if by_length else None
        names = {index: piece for piece, index in self._special.items()}
        self._names = {
            "bos_token": "" if tokenizer.begin_of_text is None else names.get(tokenizer.begin_of_text, ""),
            "eos_token": names.get(tokenizer.end_of_text, ""),
        }
        # As transformers renders it, but for the time of day, which samples must not depend on.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"The chat template {path} is no Jinja template ({error}); repair it.") from error

    def special_piece_in(self, text: str) -> str | None:
        """A special piece that a text spells, and that would be taken for one that the template wrote; None: none."""
        match = self._split.search(text) if self._split else None
        return match[0] if match else None

    def pieces(self, messages: Sequence[dict[str, Any]]) -> list[TurnPart]:
        """A conversation up to its last response. Raises ValueError with the reason why it can't be rendered."""
        done, pieces = "", []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self._render(messages[:number], True), self._render(messages[: number + 1], False)
                if not (before.startswith(done) and after.startswith(before)):
                    raise ValueError(
                        f"the chat template {self._path} changes what it renders of the turns before the turn {number} "
                        "when that is added, so that it is unknown which part is the response"
                    )
                pieces += [TurnPart(before[len(done) :], False), TurnPart(after[len(before) :], True)]
                done = after
        return pieces

    def question(self, messages: Sequence[dict[str, Any]]) -> str:
        """A conversation up to the beginning of the next response. Raises ValueError with the reason why it can't be
        rendered."""
        return self._render(messages, True)

    def split(self, text: str) -> list[str | int]:
        """A rendered text as plain texts and the ids of the special pieces between them."""
        parts = self._split.split(text) if self._split else [text]
        return [self._special[part] if number % 2 else part for number, part in enumerate(parts) if part]

    def _render(self, messages: Sequence[dict[str, Any]], generation: bool) -> str:
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=generation, **self._names)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ValueError(f"the chat template {self._path} can't render the conversation ({error})") from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """JSON as transformers writes it, without the escapes for HTML of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
