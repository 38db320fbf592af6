"""Parts of conversations that a chat template leaves out of what it renders, found by leaving them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from data_pipeline.recipes.chat_template import ChatTemplate
from data_pipeline.recipes.conversations import Dialogue, text_of

_TRIES = 16
"""conversations with a part that are tried: a template may render it in some alone"""
_ALL_RENDER = frozenset({"user", "assistant"})
_OWN_KEYS = frozenset({"role", "content"})
_COPIES = frozenset({"thinking", "reasoning", "reasoning_content"})


@dataclass
class Unrendered:
    """Parts that the template rendered in no conversation so far, and other facts about the conversations."""

    template: ChatTemplate
    marked: bool
    """Whether the loss counts on what the template marks as generated."""
    variables: set[str] = field(default_factory=set)
    """Variables of the template that rows give."""
    reads_otherwise: bool = False
    """Whether a conversation so far renders otherwise than its turns as the row has them; not asked once a row
    gave variables."""
    _tries: Counter[str] = field(default_factory=Counter)
    _rendered: set[str] = field(default_factory=set)
    _compared: int = 0
    _num_other_marks: int = 0
    _num_trailing: int = 0

    def look(self, dialogue: Dialogue, given: Any) -> None:
        """Takes a conversation into account, whose turns are `given` in its row. Raises ValueError for a turn with
        nothing but calls of tools, where the template does not render those."""
        self._check_calls(dialogue)
        self.variables |= dialogue.variables.keys()
        self.reads_otherwise = self.reads_otherwise or (not self.variables and self._differs(dialogue, given))
        self._num_trailing += not self.marked and dialogue.turns[-1]["role"] != "assistant"
        text = None
        for part, without in _without_parts(dialogue):
            if part in self._rendered or self._tries[part] >= _TRIES:
                continue
            self._tries[part] += 1
            text = self._render(dialogue) if text is None else text
            if self._render(without) != text:
                self._rendered.add(part)
        if self.template.marks_responses and not self.marked and self._compared < _TRIES:
            self._compared += 1
            self._num_other_marks += self._marks_others(dialogue)

    def sentences(self) -> tuple[str, ...]:
        """Notes on the conversations, one sentence each without its full stop."""
        said = []
        if left_out := sorted(self._tries.keys() - self._rendered):
            said.append(f"the chat template renders nothing of {', '.join(left_out)}")
        if self._num_trailing:
            said.append(f"{self._num_trailing:,} conversations have turns after the last response, which are left out")
        if self._num_other_marks:
            said.append(
                "the chat template marks other text as responses, by {% generation %}, than the assistant's turns add: "
                "objective.loss_on=generation trains on what it marks"
            )
        return tuple(said)

    def _check_calls(self, dialogue: Dialogue) -> None:
        for number, turn in enumerate(dialogue.turns):
            if not text_of(turn):
                before, empty = dialogue.turns[:number], {"role": turn["role"], "content": ""}
                text = self._render(Dialogue([*before, turn], dialogue.variables))
                if text is not None and text == self._render(Dialogue([*before, empty], dialogue.variables)):
                    raise ValueError(
                        f"the turn {number} has only tool_calls, of which the chat template renders nothing"
                    )

    def _differs(self, dialogue: Dialogue, given: Any) -> bool:
        try:
            text = self.template.render_as_given(given)
        except ValueError:  # so that no run began with it
            return False
        return text != self._render(dialogue)

    def _render(self, dialogue: Dialogue) -> str | None:
        try:
            return self.template.render(dialogue.turns, dialogue.variables)
        except ValueError:
            return None

    def _marks_others(self, dialogue: Dialogue) -> bool:
        by_turns = self.template.pieces(dialogue.turns, dialogue.variables)
        marked = self.template.marked_pieces(dialogue.turns, dialogue.variables)
        return [one.text for one in by_turns if one.counts] != [one.text for one in marked if one.counts]


def _without_parts(dialogue: Dialogue) -> Iterator[tuple[str, Dialogue]]:
    """(a part, the dialogue without it) of each part that a template may leave out."""
    turns, variables = dialogue.turns, dialogue.variables
    for role in sorted({turn["role"] for turn in turns} - _ALL_RENDER):
        yield f"turns of the role {role}", Dialogue([turn for turn in turns if turn["role"] != role], variables)
    keys = {key for turn in turns for key in turn} - _OWN_KEYS
    for key in sorted(keys - _COPIES) + (["reasoning_content"] if keys & _COPIES else []):
        gone = _COPIES if key in _COPIES else {key}
        less = [{name: value for name, value in turn.items() if name not in gone} for turn in turns]
        yield f"the turns' key {key}", Dialogue(less, variables)
    for name in sorted(variables):
        rest = {other: value for other, value in variables.items() if other != name}
        yield f"the field {name}", Dialogue(turns, rest)
