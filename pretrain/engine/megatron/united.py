"""Union of mappings that several parts of a step return."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

V = TypeVar("V")


def united(mappings: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """All that the mappings have; those of parts have no name in common."""
    return {name: value for mapping in mappings for name, value in mapping.items()}
