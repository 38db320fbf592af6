"""The order in which a run reads the samples of its sources: position -> (source, epoch, number of the sample)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.order.mixture import Mixture
from data_pipeline.order.order import permute, permute_each, round_keys

_BLOCK, _BLOCKS = 2**14, 4  # most samples whose ids are computed together, and how many such blocks are cached
_BLOCK_EPOCHS = 2**8  # of all sources, that a block spans at most: each has keys of its own
_FEW = 2**8  # samples of a source that are shuffled together with those of its other epochs in a block


@dataclass(frozen=True)
class Lanes:
    """Rows that continue each other: sample i continues sample i - `count`. Each lane is a part of the only source,
    which it reads again and again."""

    count: int
    readings: int
    """readings of the source that lanes share"""
    samples_of_reading: int

    @classmethod
    def of(cls, count: int, samples: Sequence[int], readings: int) -> Lanes:
        """Lanes of a source of so many `samples`. Raises DataError for several sources, and for samples that so many
        lanes cannot share."""
        if len(samples) != 1:
            raise DataError(
                "Rows that continue each other are read from one dataset: choose one, or mix them in its build."
            )
        if count % readings:
            raise DataError(
                f"Text that is read from both ends needs an even number of rows that continue each other, and there "
                f"are {count}: change batch.sequences, or turn objective.bi_data off."
            )
        if samples[0] < count:
            raise DataError(
                f"{samples[0]} samples are too few for {count} rows that continue each other: add text, or use fewer "
                "rows."
            )
        return cls(count, readings, samples[0] // readings)

    @property
    def samples_of_lane(self) -> int:
        """Samples that each lane reads in an epoch, of one reading."""
        return self.samples_of_reading // (self.count // self.readings)

    @property
    def samples(self) -> int:
        """Samples of an epoch, of which each lane has as many."""
        return self.samples_of_lane * self.count

    def number(self, offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the sample at each `offset` of an epoch."""
        row, turn = offset % self.count, offset // self.count
        reading, lane = np.divmod(row, self.count // self.readings)
        number: NDArray[np.int64] = reading * self.samples_of_reading + lane * self.samples_of_lane + turn
        return number

    def samples_before(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of samples of its lane that come before each of these samples in an epoch."""
        return number % self.samples_of_reading % self.samples_of_lane


class SampleOrder:
    """Sources of `num_samples` samples each, mixed, and shuffled in each epoch unless there are `lanes`. All that it
    holds is a cache of ids, which any rank could recompute."""

    def __init__(self, mixture: Mixture, num_samples: Sequence[int], seed: int, lanes: Lanes | None = None) -> None:
        self._mixture, self._num_samples, self._seed, self._lanes = mixture, num_samples, seed, lanes
        # For small batches ids cost more than reading, unless they are computed for many samples at once; but a block
        # of a source of one sample has as many epochs.
        size, of_source = _BLOCK, np.array(num_samples)
        while size > _BLOCK_EPOCHS and (mixture.counts(size) / of_source).sum() > _BLOCK_EPOCHS:
            size //= 2
        self._block_size = size
        self._block = functools.lru_cache(_BLOCKS)(lambda number: self._compute(number * size, size))

    def ids(self, start: int, count: int) -> NDArray[np.int64]:
        """[count, 3] (source, epoch, number) of the samples from position `start` on."""
        size = self._block_size
        if not 0 < count <= size:
            return self._compute(start, count)
        first, last = start // size, (start + count - 1) // size
        blocks = [self._block(number) for number in range(first, last + 1)]
        begin = start - first * size
        ids = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return ids[begin : begin + count].copy()

    def _compute(self, start: int, count: int) -> NDArray[np.int64]:
        """Computes what `ids` caches."""
        source, index = self._mixture.assign(np.arange(start, start + count, dtype=np.int64))
        epoch, offset = np.divmod(index, np.array(self._num_samples, np.int64)[source])
        number = self._shuffled(source, epoch, offset) if self._lanes is None else self._lanes.number(offset)
        return np.stack([source, epoch, number], axis=1)

    def _shuffled(
        self, source: NDArray[np.int64], epoch: NDArray[np.int64], offset: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The number of the sample at each `offset` of a source's epoch."""
        samples_of = np.array(self._num_samples, np.int64)
        number = np.empty_like(offset)
        turn = epoch * len(samples_of) + source  # one for each (source, epoch)
        few = samples_of[source] < _FEW
        if few.any():
            its, which = np.unique(turn[few], return_inverse=True)
            keys = [round_keys(self._seed, *divmod(value, len(samples_of))[::-1]) for value in its.tolist()]
            number[few] = permute_each(offset[few], samples_of[source[few]], np.stack(keys, axis=1)[:, which])
            turn[few] = -1  # done
        present = turn[:1] if (turn == turn[:1]).all() else np.unique(turn)  # np.unique is slow for a block
        for value in present[present >= 0].tolist():
            e, s = divmod(value, len(samples_of))
            rows = np.flatnonzero(turn == value)
            number[rows] = permute(offset[rows], self._num_samples[s], round_keys(self._seed, s, e))
        return number
