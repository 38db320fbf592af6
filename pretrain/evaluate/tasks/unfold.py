"""Lines that hold several documents -> the fields of each."""

from collections.abc import Callable
from typing import Any

UNFOLD: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {}
