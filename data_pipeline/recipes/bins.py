"""Best-fit decreasing bin packing of any number of pieces, in time that depends on the bin's size alone.

Best-fit decreasing puts the longest piece first, each into the bin that it fills best, else into a new one (Ding et al.
2024, "Fewer Truncations Improve Language Modeling", arXiv 2404.10830). Pieces of one length are alike, and
so are bins of one content, so both are counted and not listed (as in Krell et al. 2021, "Efficient Sequence Packing
without Cross-contamination", arXiv 2107.02027): the bins are those that piece by piece gives, up to which of two equal
ones is meant.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Bins:
    """Bins of equal content."""

    number: int
    content: tuple[tuple[int, int], ...] = ()
    """(length, how many pieces of it) in each of them, longest first"""


def best_fit_decreasing(counts: Sequence[int], size: int) -> list[Bins]:
    """Bins of `size` that hold counts[length] pieces of each length; pieces are 1 to `size` long.

    The order of what it returns follows from the arguments alone. O(size * log(size)) steps, whatever the counts.
    """
    rooms: list[int] = []  # ascending: each room that some open bins have left
    open_bins: dict[int, list[Bins]] = {}
    full: list[Bins] = []

    def put(room: int, bins: Bins) -> None:
        if not bins.number:
            return
        if not room:
            full.append(bins)
            return
        if room not in open_bins:
            insort(rooms, room)
        open_bins.setdefault(room, []).append(bins)

    def tightest(length: int) -> tuple[int, Bins] | None:
        index = bisect_left(rooms, length)
        if index == len(rooms):
            return None
        room = rooms[index]
        bins = open_bins[room].pop()
        if not open_bins[room]:
            del open_bins[room], rooms[index]
        return room, bins

    for length in range(len(counts) - 1, 0, -1):
        left = counts[length]
        assert not left or length <= size
        while left:
            # A bin that has taken one piece is the tightest for the next, so each takes all that it holds.
            room, bins = tightest(length) or (size, Bins(-(-left // (size // length))))
            each = room // length
            filled = min(bins.number, left // each)
            rest = left - filled * each if filled < bins.number else 0
            put(room - each * length, Bins(filled, (*bins.content, (length, each))))
            if rest:
                put(room - rest * length, Bins(1, (*bins.content, (length, rest))))
            put(room, Bins(bins.number - filled - (rest > 0), bins.content))
            left -= filled * each + rest
    return full + [bins for room in rooms for bins in open_bins[room]]


class NumberedBins:
    """Bins one by one: which pieces are in bin 0, 1, ...; a few numbers for each kind of bin in memory."""

    def __init__(self, bins: Sequence[Bins], size: int) -> None:
        """Numbers the bins that `best_fit_decreasing` returns, and the pieces of each length in the order of bins."""
        numbers = np.array([kind.number for kind in bins], np.int64)
        self._ends = np.cumsum(numbers)
        self._begins = self._ends - numbers
        self.count = int(numbers.sum())
        # An item is (length, how many pieces of it) in each bin of a kind.
        self._num_items = np.array([len(kind.content) for kind in bins], np.int64)
        self._first_item = np.cumsum(self._num_items) - self._num_items
        items, placed = [], [0] * (size + 1)
        for kind in bins:
            for length, pieces in kind.content:
                items.append((length, pieces, placed[length]))
                placed[length] += kind.number * pieces
        self._length, self._pieces, self._first_piece = np.array(items, np.int64).reshape(-1, 3).T

    def pieces(self, bins: Ints) -> tuple[Ints, Ints, Ints]:
        """(index of its bin in 0..n-1, its length, its number among all pieces of that length) of each piece in `bins`
        [n], bin by bin."""
        kind = np.searchsorted(self._ends, bins, side="right")
        row, turn = _runs(self._num_items[kind])
        item = self._first_item[kind][row] + turn
        run, turn = _runs(self._pieces[item])
        row, item = row[run], item[run]
        before = (bins - self._begins[kind])[row] * self._pieces[item]
        return row, self._length[item], self._first_piece[item] + before + turn


def _runs(sizes: Ints) -> tuple[Ints, Ints]:
    """Runs of `sizes`, one after the other -> of each element (its run, its index in that)."""
    run = np.repeat(np.arange(len(sizes)), sizes)
    return run, np.arange(len(run)) - (np.cumsum(sizes) - sizes)[run]
