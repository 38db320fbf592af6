"""A weighted blend of sources as a timetable of one period: looked up from any position, never off by a sample.

Weights are whole numbers of units, so after as many samples as there are units in all, every source has had exactly its
share, and the same order can begin again. Within that period the order is an answer to the chairman assignment problem
(Tijdeman 1980): the j-th sample of a source has a first and a last position at which it leaves the source's count
within `bound` of its share, and each position goes to the sample that is due first of those that may come. Tijdeman
shows that for k sources the bound 1 - 1 / (2k - 2) can always be kept, and that a smaller one cannot; of unit jobs with
such windows, earliest deadline first finds an order wherever there is one.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_MOST_UNITS = 2**20  # of a period: 6 bytes of memory and 1 us of work each
_SEARCH = 2**14  # totals tried at once


class Blend:
    """`weights[i] / sum(weights)` of the samples come from source i; a source of weight 0 gives none."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Raises ValueError unless weights are finite and not negative, and one is positive."""
        if not any(weights) or any(not math.isfinite(w) or w < 0 for w in weights):
            raise ValueError(f"weights {list(weights)} must be numbers that are not negative, one of them positive.")
        units = _units(weights)
        self._units = np.array(units, np.int64)
        self._sources, self._ranks = _timetable(units)
        self.period = len(self._sources)
        """Samples after which the order begins again."""
        self.shares = [Fraction(unit, self.period) for unit in units]
        """Share of each source: exact if integers with a sum of up to 2^20 have the ratios of `weights` (as those of
        decimals with few digits do), otherwise off by less than a millionth."""
        given = sum(unit > 0 for unit in units)
        self.bound = Fraction(0) if given == 1 else 1 - Fraction(1, 2 * given - 2)
        """No source's count among the first n samples, for any n, differs from n times its share by more."""

    def assign(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sample positions [n], each >= 0 -> (source [n], index within that source's own sequence [n])."""
        periods, offsets = np.divmod(positions, self.period)
        sources = self._sources[offsets].astype(np.int64)
        return sources, periods * self._units[sources] + self._ranks[offsets]

    def counts(self, samples: int) -> NDArray[np.int64]:
        """[sources] how many of the first `samples` samples come from each."""
        periods, offset = divmod(samples, self.period)
        return periods * self._units + np.bincount(self._sources[:offset], minlength=len(self._units))


def _units(weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in the ratios of `weights`, or as near as up to 2^20 in all come."""
    exact = [Fraction(repr(float(weight))) for weight in weights]  # 0.1 is a tenth, as it was written
    scale = math.lcm(*(weight.denominator for weight in exact))
    units = [int(weight * scale) for weight in exact]
    if sum(units) // math.gcd(*units) > _MOST_UNITS:
        units = _nearest(np.array([float(Fraction(number, sum(units))) for number in units]))
    return tuple(number // math.gcd(*units) for number in units)


def _nearest(shares: NDArray[np.float64]) -> list[int]:
    """Integer units whose ratios are nearest to `shares`, over all totals that a period can have. The search makes the
    largest difference several times smaller than rounding to any one total."""
    best, least = [0], math.inf
    for total in range(_MOST_UNITS // 2, _MOST_UNITS, _SEARCH):
        totals = np.arange(total, total + _SEARCH)[:, None]
        units = np.where(shares > 0, np.maximum(1, np.rint(shares * totals)), 0)
        sums = units.sum(axis=1, keepdims=True)
        off = np.abs(units / sums - shares).max(axis=1)
        off[sums[:, 0] > _MOST_UNITS] = np.inf
        if off.min() < least:
            best, least = units[off.argmin()].astype(np.int64).tolist(), off.min()
    return best


@functools.lru_cache(maxsize=8)
def _timetable(units: tuple[int, ...]) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
    """(source [period], samples that it gave before [period]) of each position."""
    period, given = sum(units), [source for source, unit in enumerate(units) if unit]
    sources, ranks = np.zeros(period, np.int16), np.zeros(period, np.int32)
    if len(given) == 1:
        sources[:], ranks[:] = given[0], np.arange(period)
        return sources, ranks
    # Sample j = 1, 2, ... of a source with `unit` of `period` may be the n-th of all if j - n * unit / period <= bound,
    # and must not be missing any more after n samples if n * unit / period - (j - 1) > bound.
    parts = 2 * len(given) - 2  # bound = (parts - 1) / parts
    first, last, owner = [], [], []
    for source in given:
        unit = units[source]
        j = np.arange(1, unit + 1, dtype=np.int64)
        first.append(-(-(j * parts - (parts - 1)) * period // (unit * parts)) - 1)
        last.append((j * parts - 1) * period // (unit * parts))
        owner.append(np.full(unit, source, np.int64))
    begins = np.concatenate(first)
    order = np.argsort(begins, kind="stable")
    keys = (np.concatenate(last) * len(units) + np.concatenate(owner))[order].tolist()
    released = np.searchsorted(begins[order], np.arange(period), side="right").tolist()
    waiting: list[int] = []
    chosen, pushed = [], 0
    for position in range(period):
        for key in keys[pushed : released[position]]:
            heapq.heappush(waiting, key)
        pushed = released[position]
        chosen.append(heapq.heappop(waiting))
    late, table = np.divmod(np.array(chosen, np.int64), len(units))
    assert (late >= np.arange(period)).all(), "Tijdeman's bound can be kept"
    sources[:] = table
    for source in given:
        ranks[table == source] = np.arange(units[source])
    return sources, ranks
