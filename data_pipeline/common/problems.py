"""The problems that pydantic finds, in this project's words: `expected an integer`, `must be greater than 0`."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "none_required": "null",
    "path_type": "a path",
}
_LONGEST_KEY = 100  # characters that are shown


def problem_text(problem: ErrorDetails) -> str:
    """What is wrong with the value, without its key."""
    if problem["type"] in _EXPECTED:
        return f"expected {_EXPECTED[problem['type']]}"
    if problem["type"] == "literal_error":
        return f"expected {problem['ctx']['expected']}"
    if problem["type"] == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    message = problem["msg"].removeprefix("Input should be ")
    if message != problem["msg"]:
        return f"must be {message}"
    return f"{message[0].lower()}{message[1:]}".replace(" should ", " must ")


def first_problem(error: ValidationError) -> str:
    """The first problem with its key, such as `settings.steps: expected an integer`."""
    problem = error.errors(include_input=False)[0]
    key = ".".join(map(str, problem["loc"]))[:_LONGEST_KEY]
    return f"{key}: {problem_text(problem)}" if key else problem_text(problem)
