"""Rows of conversations in the formats that others publish: turns with `role` and `content` (OpenAI, transformers) or
`from` and `value` (ShareGPT), with `tools` and other variables of a chat template beside them; and alpaca's rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from data_pipeline.recipes.chat_template import ChatTemplate

Turn = dict[str, Any]

VARIABLES = "chat_template_kwargs"
"""field of a row that holds further variables of the template, as TRL names it"""

_NOT_TURNS = "is not a list of turns with a role and a content (or from and value, as ShareGPT has them)"
_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "assistant"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
}
_CALL = "function_call"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the first is what templates read, as in transformers
_LISTS = ("tools", "documents")
_ALPACA = (
    "Below is an instruction that describes a task{further}. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:"
)
"""prompt of Stanford Alpaca (tatsu-lab/stanford_alpaca, train.py)"""
_FURTHER = ", paired with an input that provides further context"


@dataclass(frozen=True)
class Dialogue:
    """Turns and variables of a row, which a chat template renders."""

    turns: list[Turn]
    variables: Mapping[str, Any]
    """Variables of the template that the row gives."""

    def suited(self, template: ChatTemplate) -> Dialogue:
        """The dialogue with contents as the template takes them: lists of parts as they are if it renders each, else
        as one text."""
        lists = [turn["content"] for turn in self.turns if isinstance(turn.get("content"), list)]
        if not lists:
            return self
        joined = [{**turn, "content": text_of(turn)} if "content" in turn else turn for turn in self.turns]
        try:
            text = template.render(self.turns, self.variables)
        except ValueError:
            return Dialogue(joined, self.variables)
        reads = all(part["text"].strip() in text for parts in lists for part in parts)
        printed = any(str(parts) in text for parts in lists)  # a template that knows no parts prints the list
        return self if reads and not printed else Dialogue(joined, self.variables)

    def texts(self, template: ChatTemplate) -> Iterator[tuple[str, str]]:
        """(what it is, a text) of everything that the template may render beside contents."""
        for number, turn in enumerate(self.turns):
            yield f"the role of the turn {number}", turn["role"]
            for key in (key for key in turn if key not in ("role", "content")):
                found = list(texts_in({key: turn[key]}))
                if template.mentions(key) or (_are_odd(found, template) and self._renders(number, key, template)):
                    yield from ((f"the key {key!r} of the turn {number}", text) for text in found)
        for name, value in self.variables.items():
            yield from ((f"the field {name!r}", text) for text in texts_in(value))

    def _renders(self, number: int, key: str, template: ChatTemplate) -> bool:
        """Whether a template that does not name a key renders it all the same, as one does that writes whole turns."""
        less = [dict(turn) for turn in self.turns]
        del less[number][key]
        try:
            return template.render(self.turns, self.variables) != template.render(less, self.variables)
        except ValueError:
            return True


def _are_odd(texts: Collection[str], template: ChatTemplate) -> bool:
    """Whether any text holds a special piece, or what is no character."""
    return any(template.special_piece_in(text) or not text.isascii() for text in texts)


def found_fields(fields: Collection[str]) -> dict[str, str]:
    """Settings of `Instructions` for rows with these fields, which are not those of a prompt and its response; empty
    for fields of no known format."""
    for messages in ("messages", "conversations"):
        if messages in fields:
            return {"messages": messages}
    if {"instruction", "output"} <= set(fields):
        return {"prompt": "instruction", "input": "input", "response": "output"}
    return {}


def alpaca_prompt(instruction: str, more: str) -> str:
    """The prompt of Stanford Alpaca; `more` is the input of the instruction, which may be empty."""
    further = _FURTHER if more else ""
    return _ALPACA.format(further=further, instruction=instruction, input=more and f"### Input:\n{more}\n\n")


def read_turns(value: Any, field: str) -> list[Turn]:
    """The turns of a conversation, with `role` and without keys that are null, as transformers passes them to a
    template. Raises ValueError for what is none."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"the field {field!r} {_NOT_TURNS}")
    return [_turn(one, number, field) for number, one in enumerate(value)]


def read_variables(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Variables of these names that a row gives, in fields of their own or in `chat_template_kwargs`. Raises ValueError
    for tools or documents that are no list of objects."""
    more = row.get(VARIABLES)
    if more is not None and not isinstance(more, dict):
        raise ValueError(f"the field {VARIABLES!r} is not an object of the template's variables")
    both = {**row, **(more or {})}
    given = {name: both[name] for name in sorted(names) if both.get(name) is not None}
    return {name: _objects(value, name) if name in _LISTS else value for name, value in given.items()}


def text_of(turn: Turn) -> str:
    """The content of a turn as text; empty without one."""
    content = turn.get("content", "")
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def texts_in(value: Any) -> Iterator[str]:
    """All texts of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)


def _turn(given: Turn, number: int, field: str) -> Turn:
    turn = {key: value for key, value in given.items() if value is not None}
    if "role" not in turn and isinstance(turn.get("from"), str):
        turn = _sharegpt_turn(turn, number)
    if not isinstance(turn.get("role"), str) or not ("content" in turn or turn.get("tool_calls")):
        raise ValueError(f"the field {field!r} {_NOT_TURNS}")
    calls = turn.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError(f"the tool_calls of the turn {number} are not a list of objects")
    if isinstance(turn.get("content"), list):
        for part in turn["content"]:
            _check_part(part, number)
    reasoning = next((turn[key] for key in _REASONING if key in turn), None)
    return turn if reasoning is None else {"thinking": reasoning, **turn, "reasoning_content": reasoning}


def _sharegpt_turn(given: Turn, number: int) -> Turn:
    turn = {key: value for key, value in given.items() if key not in ("from", "value")}
    speaker, value = given["from"], given.get("value")
    if speaker == _CALL:
        return {"role": "assistant", "content": "", "tool_calls": _calls(value, number), **turn}
    if speaker not in _SHAREGPT_ROLES:
        known = ", ".join([*_SHAREGPT_ROLES, _CALL])
        raise ValueError(f"the turn {number} is from {speaker!r}, which is none of {known}")
    content = {} if value is None else {"content": value}
    return {"role": _SHAREGPT_ROLES[speaker], **content, **turn}


def _calls(value: Any, number: int) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        parsed = None
    calls = parsed if isinstance(parsed, list) else [parsed]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise ValueError(f"the {_CALL} of the turn {number} is not JSON with a name and arguments")
    return [{"type": "function", "function": call} for call in calls]


def _check_part(part: Any, number: int) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        what = "no type" if kind is None else f"the type {kind!r}"
        raise ValueError(f"the content of the turn {number} has a part of {what}, and only parts of type text are read")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"the content of the turn {number} has a part without text")


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(one, dict) for one in parsed):
        raise ValueError(f"the field {name!r} is not a list of objects, or JSON of one")
    return parsed
