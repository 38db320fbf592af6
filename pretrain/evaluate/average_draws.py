"""Results of several draws of few-shot examples -> one result."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_ERROR = "_stderr"


def average_draws(results: Sequence[dict[str, Any]], problems: int) -> dict[str, Any]:
    """The mean of `results` over draws, with `malformed`, the number of invalid lines. Every metric that has a standard
    error is averaged; NAME_spread is the standard deviation between draws, NAME_by_draw lists their values, and counts
    are the first draw's. The same holds for each of `groups`."""
    first = _mean(results) | {"malformed": problems, "draws": len(results)}
    if "groups" in first:
        first["groups"] = {name: _mean([result["groups"][name] for result in results]) for name in first["groups"]}
    return first


def _mean(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = dict(results[0])
    if len(results) == 1:
        return first
    for name in [name.removesuffix(_ERROR) for name in first if name.endswith(_ERROR)]:
        values = [result[name] for result in results]
        if any(value is None for value in values):
            continue
        first[name] = math.fsum(values) / len(values)
        first[f"{name}_by_draw"], first[f"{name}_spread"] = values, float(np.std(values, ddof=1))
    return first
