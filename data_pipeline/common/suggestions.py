"""Suggestions for a misspelled name: `did you mean 'fuzzy_dedup'?`"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close_matches(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to `most` known names that are spelled like `name`, the closest first; `cutoff` is difflib's ratio, 0 to 1."""
    return difflib.get_close_matches(name, list(known), most, cutoff)


def did_you_mean(names: Iterable[str], otherwise: str = "") -> str:
    """A question that suggests `names`, or `otherwise` when there are none."""
    suggested = " or ".join(names)
    return f"did you mean {suggested}?" if suggested else otherwise
