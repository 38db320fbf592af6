"""Counts of tokens by layer and expert, as a line of metrics.jsonl has them, and the share of idle experts by these.

A layer has collapsed when its router sends nearly all tokens to a few experts, and the others learn nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

TOKENS_PER_EXPERT = "tokens_per_expert/"
"""prefix of their keys in metrics.jsonl; the name of a layer follows"""
IDLE_LOAD = 0.1
"""part of the mean load below which an expert is idle"""
_LEAST_MEAN = 10
"""tokens of an expert, on average, below which one without any may be chance"""


def tokens_per_expert(line: Mapping[str, Any]) -> dict[str, list[int]]:
    """The tokens of each expert, by layer, of a line of metrics.jsonl."""
    return {
        key.removeprefix(TOKENS_PER_EXPERT): counts for key, counts in line.items() if key.startswith(TOKENS_PER_EXPERT)
    }


def idle_fraction(counts: Sequence[int]) -> float | None:
    """Fraction of a layer's experts that are idle; None: too few tokens to say."""
    mean = sum(counts) / len(counts)
    return None if mean < _LEAST_MEAN else sum(count < IDLE_LOAD * mean for count in counts) / len(counts)
