"""Detection of ranks that hold the others up: slower than those like them, in several comparisons in a row.

    stragglers = Stragglers(
        50, rank, locations=locations, stages=stages, largest=engine.largest, measure=own_seconds
    )
    batches = stragglers.reading(batches)
    stragglers.begin(); ...; sentences = stragglers.end(step)

Two things are compared, once in so many steps, in one exchange. *Work*: a rank's own seconds (`own_seconds.py`), with
the median of the ranks of its pipeline stage, which compute the same. *Data*: the seconds it waits for its batch, with
the median of all ranks. A rank that takes 1.5 times the median's work, or whose data make the step half as long again,
three times in a row, is named, and again only after it was well in between.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrain.observe.own_seconds import OwnSeconds
from pretrain.process.rank_location import RankLocation

T = TypeVar("T")

FACTOR = 1.5
IN_A_ROW = 3


class Stragglers:
    """Comparison of this rank's speed with that of the others. Every rank makes one and calls it at the same steps.

    `every`: steps between two comparisons; 0: none is made. `locations` and `stages`: host and pipeline stage of each
    rank, in order. `largest`: elementwise maximum over all ranks."""

    def __init__(
        self,
        every: int,
        rank: int,
        *,
        locations: Sequence[RankLocation],
        stages: Sequence[int],
        largest: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        measure: Callable[[], OwnSeconds],
    ) -> None:
        self._every = every if len(locations) > 1 else 0
        self._rank, self._locations, self._stages = rank, locations, stages
        self._largest = largest
        self._measure = measure() if self._every else None
        self._data_s = self._step_s = self._begun_s = 0.0
        self._steps = 0
        self._slow: dict[tuple[str, int], int] = {}
        """(kind, rank) -> comparisons in a row in which it was slow"""

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """Yields `batches` and measures how long this rank waits for each."""
        begun_s, ran_s = time.perf_counter(), time.thread_time()
        for batch in batches:
            self._data_s += time.perf_counter() - begun_s - (time.thread_time() - ran_s)
            yield batch
            begun_s, ran_s = time.perf_counter(), time.thread_time()

    def begin(self) -> None:
        """Starts the measurement of a step."""
        if self._measure is not None:
            self._begun_s = time.perf_counter()
            self._measure.begin()

    def end(self, step: int) -> list[str]:
        """Ends the measurement of `step`. Returns a sentence for each rank that holds the others up. Collective."""
        if self._measure is None:
            return []
        self._measure.end()
        self._step_s += time.perf_counter() - self._begun_s
        self._steps += 1
        if step % self._every:
            return []
        measured = self._measure.take(), self._data_s / self._steps, self._step_s / self._steps
        self._data_s, self._step_s, self._steps = 0.0, 0.0, 0
        everyone = np.full((len(self._locations), len(measured)), -1.0)
        everyone[self._rank] = measured
        return self._judge(self._largest(everyone.reshape(-1)).reshape(everyone.shape), self._measure.floor_s)

    def _judge(self, seconds: NDArray[np.float64], floor_s: float) -> list[str]:
        reasons = {("work", rank): text for rank, text in slow_workers(seconds[:, 0], self._stages, floor_s).items()}
        reasons |= {("data", rank): text for rank, text in slow_readers(seconds[:, 1], seconds[:, 2].max()).items()}
        self._slow = {key: self._slow.get(key, 0) + 1 for key in reasons}
        return [
            f"rank {rank} (local rank {self._locations[rank].local_rank} on {self._locations[rank].host}) holds the "
            f"others up: {reasons[kind, rank]}, {IN_A_ROW} times in a row, compared every {self._every} steps"
            for (kind, rank), times in self._slow.items()
            if times == IN_A_ROW
        ]


def slow_workers(seconds: NDArray[np.float64], stages: Sequence[int], floor_s: float) -> dict[int, str]:
    """Ranks whose own seconds are `FACTOR` times the median of their pipeline stage (of two ranks, the lesser), and
    `floor_s` more: what to say of each. A stage of one rank has nothing to compare with."""
    reasons = {}
    for rank, rank_s in enumerate(seconds.tolist()):
        like = [value for value, stage in zip(seconds.tolist(), stages, strict=True) if stage == stages[rank]]
        usual_s = median_low(like)
        if rank_s > FACTOR * usual_s and rank_s - usual_s > floor_s:
            reasons[rank] = f"{rank_s * 1e3:.3g} ms of work where {usual_s * 1e3:.3g} ms are usual"
    return reasons


def slow_readers(seconds: NDArray[np.float64], step_s: float) -> dict[int, str]:
    """Ranks that wait for their data so much longer than the median that steps of `step_s` seconds in all would take
    two thirds of that without it: what to say of each."""
    usual_s = median_low(seconds.tolist())
    return {
        rank: f"it waits {rank_s * 1e3:.3g} ms of each step for its data, others {usual_s * 1e3:.3g} ms"
        for rank, rank_s in enumerate(seconds.tolist())
        if rank_s - usual_s > (1 - 1 / FACTOR) * step_s
    }
