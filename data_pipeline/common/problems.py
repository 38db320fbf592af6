"""The problems that pydantic finds, in this project's words: `expected an integer`, `must be greater than 0`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    "int_parsing_size": "a smaller integer",
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode"), "text"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "a list"),
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        "a date such as 2024-07-26",
    ),
    "invalid_key": "keys that are text",
    "none_required": "null",
    "path_type": "a path",
}
_LENGTHS = {
    **dict.fromkeys(("too_short", "string_too_short"), ("at least", "min_length")),
    **dict.fromkeys(("too_long", "string_too_long"), ("at most", "max_length")),
}
_LONGEST_KEY = 100  # characters that are shown


def problem_text(problem: ErrorDetails) -> str:
    """Description of the problem with the value, without its key."""
    if problem["type"] in _EXPECTED:
        return f"expected {_EXPECTED[problem['type']]}"
    if problem["type"] in ("literal_error", "enum"):
        return f"expected {problem['ctx']['expected']}"
    if problem["type"] in _LENGTHS:
        bound, key = _LENGTHS[problem["type"]]
        return f"expected {bound} {_counted(problem['ctx'][key], problem['type'])}"
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    message = problem["msg"].removeprefix("Input should be ")
    if message != problem["msg"]:
        return f"must be {message}"
    return f"{message[0].lower()}{message[1:]}".replace(" should ", " must ")


def expected_kinds(problems: Sequence[ErrorDetails]) -> str | None:
    """Description of the expected kinds of a value, such as `expected text, true or false or an integer`, where each of
    `problems` is that of one kind that the value may have; None: one is another problem."""
    kinds = list(dict.fromkeys(_EXPECTED.get(problem["type"], "") for problem in problems))
    if "" in kinds:
        return None
    *others, last = kinds
    return f"expected {', '.join(others)} or {last}" if others else f"expected {last}"


def _counted(count: int, kind: str) -> str:
    what = "character" if kind.startswith("string") else "item"
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def first_problem(error: ValidationError) -> str:
    """The first problem with its key, such as `settings.steps: expected an integer`."""
    problem = error.errors(include_input=False)[0]
    key = ".".join(map(str, problem["loc"]))[:_LONGEST_KEY]
    return f"{key}: {problem_text(problem)}" if key else problem_text(problem)
