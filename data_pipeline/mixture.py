"""A weighted blend of sources that is computed, not drawn: from any position at once, exact at every prefix.

The heaviest source takes its share of the positions, evenly spaced; what is left is a shorter sequence, which the next
source shares with the rest in the same way. Each step rounds a count once, so after any number of samples each source
is within about one sample of its share, and nothing has to be stored.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_UNIT = 2**31  # a share is a whole number of units; its square still fits 64 bits


def mixing_weights(
    examples: list[int],
    kind: Literal["proportional", "temperature", "equal"],
    cap: int | None = None,
    temperature: float = 1.0,
) -> list[float]:
    """Shares of tasks with so many `examples` each, that sum to 1 (Raffel et al. 2020, section 3.5.2).

    proportional: by size, where one larger than `cap` counts as that large. temperature: those shares to the power of
    1 / `temperature`, which makes them more even. equal: all the same. Raises ValueError for what has no shares.
    """
    if not examples or min(examples) <= 0:
        raise ValueError(f"examples {examples} must be positive numbers; remove a task that has none.")
    if temperature <= 0 or (cap is not None and cap <= 0):
        raise ValueError(f"temperature={temperature} and cap={cap} must be positive.")
    if kind == "equal":
        return [1 / len(examples)] * len(examples)
    sizes = [min(count, cap or count) for count in examples]
    largest = max(sizes)
    exponent = 1 / temperature if kind == "temperature" else 1.0
    powers = [(size / largest) ** exponent for size in sizes]
    return [power / sum(powers) for power in powers]


class Mixture:
    """`weights[i] / sum(weights)` of the samples come from source i."""

    def __init__(self, weights: list[float]) -> None:
        """Raises ValueError unless every weight is finite and positive."""
        if not weights or any(not math.isfinite(w) or w <= 0 for w in weights):
            raise ValueError(f"weights {weights} must be positive numbers; remove a source instead of giving it none.")
        self._order = sorted(range(len(weights)), key=lambda i: -weights[i])
        left = sum(Fraction(w) for w in weights)
        self._shares: list[int] = []  # of what the heavier sources leave over, in units
        for source in self._order:
            self._shares.append(round(Fraction(weights[source]) / left * _UNIT))
            left -= Fraction(weights[source])

    def assign(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sample positions [n], each >= 0 -> (source [n], index within that source's own sequence [n])."""
        sources = np.empty_like(positions)
        indices = np.empty_like(positions)
        open_rows, rest = np.arange(positions.size), positions
        for source, share in zip(self._order, self._shares, strict=True):
            taken = _count(rest, share)
            mine = _count(rest + 1, share) > taken
            sources[open_rows[mine]] = source
            indices[open_rows[mine]] = taken[mine]
            open_rows, rest = open_rows[~mine], (rest - taken)[~mine]
        assert open_rows.size == 0
        return sources, indices


def _count(positions: NDArray[np.int64], share: int) -> NDArray[np.int64]:
    """How many of the first `positions` go to a source with `share`: positions * share / unit, rounded, in 64 bits."""
    units, part = np.divmod(positions, _UNIT)
    count: NDArray[np.int64] = units * share + (part * share + _UNIT // 2) // _UNIT
    return count
