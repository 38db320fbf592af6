"""Templates and expressions of task files: Jinja in its sandbox, made strict.

A task file is data, and so are the lines that it is filled with: a field that is missing or is no text must not turn
into words that a model is scored on ("None", "['a']", "3"). So whatever a template shows has to be text, and there are
only the filters of `filters.py`, which take nothing else.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined
from jinja2.sandbox import SandboxedEnvironment

from pretrain.evaluate.tasks.filters import FILTERS

Fields = Mapping[str, Any]
BAD_FIELDS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""what templates and expressions raise where the fields of a line are not as they expect"""


def template(text: str) -> Callable[[Fields], str]:
    """Fields -> the text. Raises TemplateError for what is no template."""
    return _ENVIRONMENT.from_string(text).render


def expression(text: str) -> Callable[[Fields], Any]:
    """Fields -> the value. Raises TemplateError for what is no expression."""
    compiled = _ENVIRONMENT.compile_expression(text, undefined_to_none=False)

    def value(fields: Fields) -> Any:
        found = compiled(fields)
        if isinstance(found, Undefined):
            str(found)  # which says what is missing
        return found

    return value


def _text(value: Any) -> str:
    if isinstance(value, Undefined):
        str(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not text but {type(value).__name__}")
    return value


class _Environment(SandboxedEnvironment):
    def getitem(self, obj: Any, argument: Any) -> Any:
        """As Jinja's, but for the letters of a text where the items of a list are meant."""
        if isinstance(obj, str):
            raise TypeError(f"{obj!r:.60} is text, which has no items")
        return super().getitem(obj, argument)


_ENVIRONMENT = _Environment(undefined=StrictUndefined, finalize=_text, keep_trailing_newline=True)
_ENVIRONMENT.filters = FILTERS
_ENVIRONMENT.globals = {"range": _ENVIRONMENT.globals["range"]}  # every rendering copies them
