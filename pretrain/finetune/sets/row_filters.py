"""Rows of the source files that are in a split, by their numbers from 0 over all files."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path


def every_tenth(number: int) -> bool:
    """Row 9, 19, 29 ...: the validation rows of a set that has none."""
    return number % 10 == 9


@cache
def _mrpc_validation_rows() -> frozenset[int]:
    return frozenset(map(int, Path(__file__).with_name("mrpc_validation_rows.txt").read_text().split()))


def mrpc_validation(number: int) -> bool:
    """Rows of MSR's training file that are GLUE's validation split."""
    return number in _mrpc_validation_rows()


ROW_FILTERS: Mapping[str, Callable[[int], bool]] = {
    "all": lambda number: True,
    "every_tenth": every_tenth,
    "all_but_every_tenth": lambda number: not every_tenth(number),
    "mrpc_validation": mrpc_validation,
    "mrpc_train": lambda number: not mrpc_validation(number),
}
"""Filters by the name that `keep` gives."""
