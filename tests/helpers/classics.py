"""Cases of old and rare families in tests of all families: rows in `tests/classics/*/rows.py`, which go with them."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1] / "classics"


def rows(table: str) -> dict[str, Any]:
    """The rows that folders have in a table of this name."""
    return {name: row for found in _tables(table) for name, row in found.items()}


def names(table: str) -> tuple[str, ...]:
    """The names that folders have in a list of this name."""
    return tuple(name for found in _tables(table) for name in found)


def _tables(table: str) -> Iterator[Any]:
    for path in sorted(_TESTS.glob("*/rows.py")):
        yield getattr(import_module(f"tests.classics.{path.parent.name}.rows"), table, {})
