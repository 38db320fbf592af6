"""What task files may do to a field besides Jinja's own filters."""

import re
from collections.abc import Callable
from typing import Any


def without(text: str, pattern: str) -> str:
    """All that matches the regular expression left out."""
    return re.sub(pattern, "", text)


def spaces(text: str) -> str:
    """White space of any kind and length made one space, none at the ends."""
    return " ".join(text.split())


def begin_of(text: str, mark: str) -> str:
    """What stands before the first `mark`."""
    return text.partition(mark)[0]


def end_of(text: str, mark: str) -> str:
    """What stands after the first `mark`."""
    return text.partition(mark)[2]


FILTERS: dict[str, Callable[..., Any]] = {
    "without": without,
    "spaces": spaces,
    "begin_of": begin_of,
    "end_of": end_of,
    "capitalize_first": lambda text: text[:1].upper() + text[1:],
    "tidy": lambda texts: [spaces(without(text.replace(" [title]", ". "), r"\[.*?\]")) for text in texts],
}
