"""Values derived from a frozen object, computed once for each object."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

K = TypeVar("K")
R = TypeVar("R")


def once_for_each(function: Callable[[K], R]) -> Callable[[K], R]:
    """`function`, called once for each object for as long as it lives. Settings are frozen, but hold lists, so they
    have no hash; equal ones that are two objects are two. The result is shared: it must not be changed."""
    known: dict[int, tuple[weakref.ref[Any], R]] = {}

    @wraps(function)
    def found(of: K) -> R:
        number = id(of)
        if number not in known:
            # Another object may have the same number once this one is gone.
            known[number] = weakref.ref(of, lambda _: known.pop(number, None)), function(of)
        return known[number][1]

    return found
