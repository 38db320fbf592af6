"""The Jinja environment of chat templates, as transformers has it (`utils/chat_template_utils.py`), with two
differences: a variable that nobody gives is refused where a template uses its value, and the date is a given one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

_ALWAYS = frozenset({"messages", "add_generation_prompt", "strftime_now"})
"""Names that a template asks for and that no row gives."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass
class _Marks:
    """Text rendered so far, and the spans of generated parts in it, in characters."""

    blocks: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)


_marks: ContextVar[_Marks | None] = ContextVar("_marks", default=None)


class _Generation(Extension):
    """The tag that marks responses in some templates, which changes nothing that they render."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node:
        """The block between the tag and its end."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_noted"), [], [], body).set_lineno(line)

    def _noted(self, caller: Callable[[], str]) -> str:
        text, marks = caller(), _marks.get()
        if marks is not None:
            begin = sum(map(len, marks.blocks))
            marks.spans.append((begin, begin + len(text)))
        return text


@dataclass(frozen=True)
class CompiledTemplate:
    """A template that is ready to render."""

    template: jinja2.Template
    variables: frozenset[str]
    """Names that it asks for beside the turns: `tools`, `documents`, switches, and names of special tokens."""
    marks_responses: bool
    """Whether it has the tag `generation`."""

    def render(self, values: dict[str, Any]) -> str:
        """The text. Raises what Jinja and operations on `values` raise."""
        return self.template.render(values)

    def render_marked(self, values: dict[str, Any]) -> Iterator[tuple[str, bool]]:
        """The text in parts, with whether each is marked as generated. Raises what `render` raises."""
        marks = _Marks()
        token = _marks.set(marks)
        try:
            for block in self.template.generate(values):
                marks.blocks.append(block)
        finally:
            _marks.reset(token)
        text, done = "".join(marks.blocks), 0
        for begin, end in marks.spans:
            yield text[done:begin], False
            yield text[begin:end], True
            done = end
        yield text[done:], False


def compile_template(source: str, day: date | None) -> CompiledTemplate:
    """`day` is what `strftime_now` formats; None: a template that calls it is refused when it renders. Raises
    jinja2.TemplateError for a text that is no template, and SyntaxError, RecursionError or MemoryError for one whose
    program Python refuses."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    if day is not None:
        environment.globals["strftime_now"] = datetime.combine(day, time()).strftime
    tree = environment.parse(source)
    assigned = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = meta.find_undeclared_variables(tree) - environment.globals.keys()
    environment.undefined = _undefined_of(frozenset(assigned))
    marks = _GENERATION.search(source) is not None
    return CompiledTemplate(environment.from_string(source), frozenset(asked - _ALWAYS), marks)


def _undefined_of(assigned: frozenset[str]) -> type[jinja2.Undefined]:
    """The class of values that a template asks for and nobody gives. It is false, and `is defined`, `if` and `default`
    guard it; of a variable, any other use is refused. `assigned` are names that the template sets itself on some way:
    those, and keys that a turn lacks, are as empty as in transformers."""

    class Ungiven(jinja2.Undefined):
        __slots__ = ()

        @property
        def _asked(self) -> bool:
            known = self._undefined_hint is not None or self._undefined_obj is not missing
            return not known and self._undefined_name not in assigned

        @property
        def _undefined_message(self) -> str:
            name = self._undefined_name
            if not self._asked:
                return super()._undefined_message
            if name == "strftime_now":
                return "it asks for the date of the day, on which samples must not depend: set objective.date to one"
            return f"it asks for {name}, which no field of the row gives: set objective.template_variables.{name}"

        def __str__(self) -> str:
            return self._fail_with_undefined_error() if self._asked else super().__str__()

        def __iter__(self) -> Iterator[Any]:
            return self._fail_with_undefined_error() if self._asked else super().__iter__()

        def __len__(self) -> int:
            return self._fail_with_undefined_error() if self._asked else super().__len__()

        def __bool__(self) -> bool:
            return False

    return Ungiven


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it, without the escapes for HTML of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_no_json,
    )


def _no_json(value: Any) -> NoReturn:
    str(value)  # refuses a variable that nobody gives, by its name
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
