"""Samples of an order that a run leaves out: where the others are, as a pure function of what is left out.

A gap says that from the run's sample `begin` on, the next `samples` samples of the order are passed over. It is counted
as the run counts with the gaps before it, so a run that comes upon bad samples writes down where it stands and how many
they are; what it has read until then keeps its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np


class Gaps:
    """Of one order: (begin, samples) each, in the order in which a run comes to them."""

    def __init__(self, gaps: Sequence[tuple[int, int]] = ()) -> None:
        """Raises ValueError for gaps out of order, or of no samples."""
        begins = [begin for begin, _ in gaps]
        if any(begin < 0 or samples <= 0 for begin, samples in gaps) or begins != sorted(begins):
            raise ValueError(f"samples left out are (begin, samples) in rising order, not {list(gaps)}.")
        self.gaps = tuple(gaps)
        self._begins = np.array(begins, np.int64)
        self._passed = np.array([0, *accumulate(samples for _, samples in gaps)], np.int64)

    def place(self, position: int) -> int:
        """Where in the order the run's sample `position` is."""
        if not self.gaps:  # as most runs have none, and a small batch feels each call of numpy
            return position
        return position + int(self._passed[np.searchsorted(self._begins, position, side="right")])

    def stretches(self, start: int, count: int) -> list[tuple[int, int]]:
        """(first, samples) in the order, of the run's samples start..start+count-1, which gaps may divide."""
        if not self.gaps:
            return [(start, count)]
        inside = sorted({begin for begin, _ in self.gaps if start < begin < start + count})
        edges = [start, *inside, start + count]
        return [(self.place(low), high - low) for low, high in pairwise(edges)]

    def begun_by(self, position: int) -> Gaps:
        """Those that lie before the run's sample `position`."""
        return Gaps([gap for gap in self.gaps if gap[0] < position])

    def left_out(self, number: int) -> list[tuple[int, int]]:
        """(first, samples) in the order, of what gap `number` passes over."""
        begin, samples = self.gaps[number]
        return Gaps(self.gaps[:number]).stretches(begin, samples)
