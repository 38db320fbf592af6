"""Chat templates (Jinja, as in Hugging Face's `apply_chat_template`): what they render of a conversation, and which
parts of that are responses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.recipes.base import Ids
from data_pipeline.recipes.template_environment import compile_template
from data_pipeline.tokenizers.base import Tokenizer

NOTHING: Mapping[str, Any] = MappingProxyType({})


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
            source = path.read_text(encoding="utf-8")  # a byte order mark is text, as in transformers
        except (OSError, ValueError) as error:
            raise DataError(f"The chat template {path} can't be read ({error}); give a text file.") from error
        self._source = source
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        self._tokenizer, self._special = tokenizer, tokenizer.special_pieces()
        by_length = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, by_length))})") if by_length else None
        names = self._names = {index: piece for piece, index in self._special.items()}
        self._given = {
            "tools": None,
            "documents": None,
            "bos_token": "" if tokenizer.begin_of_text is None else names.get(tokenizer.begin_of_text, ""),
            "eos_token": names.get(tokenizer.end_of_text, ""),
            **variables,
        }
        try:
            self._template = compile_template(source, day)
        except Exception as error:  # Jinja's own, and Python's of the program that Jinja makes of it
            raise DataError(f"The chat template {path} is no Jinja template ({_said(error)}); repair it.") from error

    @property
    def variables(self) -> frozenset[str]:
        """Names that it asks for beside the turns: `tools`, `documents`, switches."""
        return self._template.variables

    @property
    def marks_responses(self) -> bool:
        """Whether it says by `{% generation %}` which parts are responses."""
        return self._template.marks_responses

    def lacking(self, names: Mapping[str, str]) -> dict[str, str]:
        """The values, by name, of variables that it asks for, and has no value or another one for."""
        return {name: text for name, text in names.items() if name in self.variables and self._given.get(name) != text}

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
        except Exception as error:  # a template is a program of others
            raise self._refused(error) from error
        return [TurnPart(text, counts) for text, counts in parts if text]

    def marked_question(self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] = NOTHING) -> str:
        """A conversation up to the first mark within what the last turn of the role assistant adds. Raises ValueError
        with the reason why it can't be rendered."""
        last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
        parts = self.marked_pieces(messages, variables)
        earlier = self.marked_pieces(messages[:last], variables) if last else []
        text, before = ("".join(part.text for part in some) for some in (parts, earlier))
        ends = list(accumulate(len(part.text) for part in parts))
        marks = [number for number, part in enumerate(parts) if part.counts]
        if text.startswith(before):
            own = [number for number in marks if ends[number] > len(before)]
        else:  # a template that changes earlier turns, whose marks it keeps
            own = marks[sum(part.counts for part in earlier) :]
        first = (own or marks[-1:] or [len(parts)])[0]
        return "".join(part.text for part in parts[:first])

    def question(self, messages: Sequence[dict[str, Any]]) -> str:
        """A conversation up to the beginning of the next response. Raises ValueError with the reason why it can't be
        rendered."""
        return self.render(messages, opens_response=True)

    def encode(self, texts: list[str], threads: int | None = 1) -> list[tuple[Ids, NDArray[np.int64]]]:
        """(ids, [ids, 2] the characters of each) of rendered texts, as transformers encodes them: each as a whole, in
        which special pieces are found. On `threads` (None: one per core)."""
        found = self._tokenizer.encode_marked_batch(texts, threads)
        return [(ids.astype(np.int64), offsets) for ids, offsets in found]

    def forged(self, text: str, ids: Ids, offsets: NDArray[np.int64]) -> str | None:
        """A part of a rendered text that the tokenizer takes for a special piece though it is spelled otherwise, so
        that a row's text may hold it; None: nothing."""
        for number in np.flatnonzero(np.isin(ids, list(self._names))).tolist():
            begin, end = offsets[number].tolist()
            found, index = text[begin:end], int(ids[number])
            is_spelled = found.strip() == self._names[index].strip()
            if not is_spelled and index not in self._tokenizer.encode(found):  # as it is for unknown characters
                return found
        return None

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
        except Exception as error:  # a template is a program of others
            raise self._refused(error) from error

    def render_as_given(self, messages: Sequence[dict[str, Any]]) -> str:
        """The text of turns as a row has them, without `tools` and `documents`: what was rendered once. Raises
        ValueError as `render` does."""
        return self.render(messages, {name: jinja2.Undefined(name=name) for name in ("tools", "documents")})

    def _values(
        self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any], opens_response: bool
    ) -> dict[str, Any]:
        own = {"messages": list(messages), "add_generation_prompt": opens_response}
        return {**self._given, **variables, **own}

    def _refused(self, error: Exception) -> ValueError:
        return ValueError(f"the chat template {self._path} can't render the conversation ({_said(error)})")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
