"""Samples of an order that a run skips, and where the remaining ones are: a pure function of the skipped ranges.

A skip (begin, samples) says that from the run's sample `begin` on, the next `samples` samples of the order are skipped.
`begin` counts the run's samples with all earlier skips applied, so a run that meets bad samples records its
position and how many samples to skip; every sample that it has already read keeps its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np


class SkippedRanges:
    """The skips (begin, samples) of one order, in the order in which a run meets them."""

    def __init__(self, skips: Sequence[tuple[int, int]] = ()) -> None:
        """Raises ValueError for skips out of order, or of no samples."""
        begins = [begin for begin, _ in skips]
        if any(begin < 0 or samples <= 0 for begin, samples in skips) or begins != sorted(begins):
            raise ValueError(f"skipped samples must be (begin, samples) in ascending order, not {list(skips)}.")
        self.skips = tuple(skips)
        self._begins = np.array(begins, np.int64)
        self._skipped = np.array([0, *accumulate(samples for _, samples in skips)], np.int64)

    def order_position(self, position: int) -> int:
        """The position in the order of the run's sample `position`."""
        if not self.skips:  # most runs skip nothing, and each numpy call is noticeable for a small batch
            return position
        return position + int(self._skipped[np.searchsorted(self._begins, position, side="right")])

    def ranges(self, start: int, count: int) -> list[tuple[int, int]]:
        """Ranges (first, samples) of the order that hold the run's samples start..start+count-1."""
        if not self.skips:
            return [(start, count)]
        inside = sorted({begin for begin, _ in self.skips if start < begin < start + count})
        edges = [start, *inside, start + count]
        return [(self.order_position(low), high - low) for low, high in pairwise(edges)]

    def before(self, position: int) -> SkippedRanges:
        """The skips that begin before the run's sample `position`."""
        return SkippedRanges([skip for skip in self.skips if skip[0] < position])

    def skipped(self, number: int) -> list[tuple[int, int]]:
        """Ranges (first, samples) of the order that skip `number` leaves out."""
        begin, samples = self.skips[number]
        return SkippedRanges(self.skips[:number]).ranges(begin, samples)
