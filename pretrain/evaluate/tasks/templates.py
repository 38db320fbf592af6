"""Templates of task files: Jinja in its sandbox, made strict.

A task file is data, and so are the lines that it is filled with: a field that is missing or is no text must not turn
into words that a model is scored on ("None", "['a']", "3"). So whatever a template shows has to be text, and there are
only the filters of `filters.py`, which take nothing else.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.sandbox import SandboxedEnvironment

from pretrain.evaluate.tasks.filters import FILTERS

Fields = Mapping[str, Any]
BAD_FIELDS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions of templates where the fields of a line are not as they expect."""
_FIELD = re.compile(r"[^\W\d]\w*")


def template(text: str) -> Callable[[Fields], str]:
    """Fields -> the text. Raises TemplateError for an invalid template."""
    return _ENVIRONMENT.from_string(text).render


Kind = Literal["field", "expression", "text"]
"""The name of a field, a single `{{ expression }}`, or a text with such in it."""


def kind_of(text: str) -> Kind:
    """Kind of template that `text` is. Raises TemplateError for an invalid template."""
    if _FIELD.fullmatch(text):
        return "field"
    return "text" if _single_expression(text) is None else "expression"


def value_template(text: str) -> Callable[[Fields], Any]:
    """Fields -> the value of a field or an expression, or the rendered text. Raises TemplateError for an invalid
    template."""
    if kind_of(text) == "field":
        return _expression(text)
    single = _single_expression(text)
    make: Callable[[Fields], Any] = template(text) if single is None else _expression(single)
    return lambda fields: fields[text] if text in fields else make(fields)


def _single_expression(text: str) -> str | None:
    match _ENVIRONMENT.parse(text).body:
        case [nodes.Output(nodes=[nodes.TemplateData()])]:
            return None
        case [nodes.Output(nodes=[_])]:
            return text.strip().removeprefix("{{").removesuffix("}}").strip("-+")
    return None


def _expression(text: str) -> Callable[[Fields], Any]:
    compiled = _ENVIRONMENT.compile_expression(text, undefined_to_none=False)

    def value(fields: Fields) -> Any:
        result = compiled(fields)
        if isinstance(result, Undefined):
            str(result)  # raises, and says what is missing
        return result

    return value


def _text(value: Any) -> str:
    if isinstance(value, Undefined):
        str(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not text but {type(value).__name__}")
    return value


class _Environment(SandboxedEnvironment):
    def getitem(self, obj: Any, argument: Any) -> Any:
        """The item, as Jinja's, but for the letters of a text where the items of a list are meant."""
        if isinstance(obj, str):
            raise TypeError(f"{obj!r:.60} is text, which has no items")
        return super().getitem(obj, argument)


_ENVIRONMENT = _Environment(undefined=StrictUndefined, finalize=_text, keep_trailing_newline=True)
_ENVIRONMENT.filters = FILTERS
_ENVIRONMENT.globals = {"range": _ENVIRONMENT.globals["range"]}  # every rendering copies them
