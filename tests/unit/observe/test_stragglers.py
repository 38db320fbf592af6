"""Ranks that hold the others up are named: by their own work, or by the wait for their data, three times in a row."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from pretrain.observe.own_seconds import ThreadSeconds
from pretrain.observe.stragglers import IN_A_ROW, Stragglers, slow_readers, slow_workers
from pretrain.process.rank_location import RankLocation

STAGES = [0, 0, 0, 1, 1, 1]
LOCATIONS = [RankLocation(f"node{rank // 3}", rank % 3, rank) for rank in range(6)]


class Given:
    """A measure that says what it is told to."""

    floor_s = 0.0
    seconds = 0.1

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def take(self) -> float:
        return self.seconds


class Ranks:
    """All ranks as rank 0 sees them: the other ranks' figures are inserted where ranks exchange theirs."""

    def __init__(self, every: int = 2) -> None:
        self.work = [0.1] * 6
        self.data = [0.0] * 6
        self.step = 0
        self.stragglers = Stragglers(every, 0, locations=LOCATIONS, stages=STAGES, largest=self.largest, measure=Given)

    def largest(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        own = own.reshape(6, 3).copy()
        assert (own[1:] == -1).all(), "a rank says what is its own"
        own[:, 0], own[:, 1], own[:, 2] = self.work, self.data, 0.3
        return own.reshape(-1)

    def compare(self, times: int) -> list[str]:
        said = []
        for _ in range(times * 2):
            self.step += 1
            self.stragglers.begin()
            said += self.stragglers.end(self.step)
        return said


def test_a_slow_rank_is_named_once_until_it_is_well_again() -> None:
    ranks = Ranks()
    ranks.work[4] = 0.2
    assert ranks.compare(IN_A_ROW - 1) == []
    (said,) = ranks.compare(10)
    assert said.startswith("rank 4 (local rank 1 on node1) holds the others up: 200 ms of work where 100 ms are usual")
    ranks.work[4] = 0.1
    assert ranks.compare(1) == []
    ranks.work[4] = 0.2
    assert len(ranks.compare(IN_A_ROW)) == 1


def test_now_and_then_is_no_reason() -> None:
    ranks = Ranks()
    for _ in range(10):
        ranks.work[4] = 0.9
        assert ranks.compare(IN_A_ROW - 1) == []
        ranks.work[4] = 0.1
        assert ranks.compare(1) == []


def test_waiting_for_data_is_named_as_such() -> None:
    ranks = Ranks()
    ranks.data[1] = 0.15
    (said,) = ranks.compare(IN_A_ROW)
    assert said.startswith("rank 1 (local rank 1 on node0) holds the others up: it waits 150 ms of each step for its")


def test_pipeline_stages_are_compared_with_themselves() -> None:
    assert slow_workers(np.array([1, 1, 1, 3, 3, 3.0]), STAGES, 0.0) == {}
    assert list(slow_workers(np.array([1, 1, 1, 3, 3, 5.0]), STAGES, 0.0)) == [5]
    assert slow_workers(np.array([1, 9.0]), [0, 1], 0.0) == {}, "nothing to compare with"
    assert list(slow_workers(np.array([1, 9.0]), [0, 0], 0.0)) == [1]


def test_what_is_little_is_no_matter() -> None:
    assert slow_workers(np.array([0.001, 0.001, 0.003]), [0, 0, 0], 0.005) == {}
    assert slow_workers(np.array([0.1, 0.1, 0.149]), [0, 0, 0], 0.005) == {}
    assert list(slow_workers(np.array([0.1, 0.1, 0.151]), [0, 0, 0], 0.005)) == [2]
    assert slow_readers(np.array([0.0, 0.09]), 0.3) == {}
    assert list(slow_readers(np.array([0.0, 0.11]), 0.3)) == [1]


def test_off_and_alone_nothing_is_measured() -> None:
    def never() -> Given:
        raise AssertionError

    for stragglers in (
        Stragglers(0, 0, locations=LOCATIONS, stages=STAGES, largest=never, measure=never),  # type: ignore[arg-type]
        Stragglers(1, 0, locations=LOCATIONS[:1], stages=[0], largest=never, measure=never),  # type: ignore[arg-type]
    ):
        stragglers.begin()
        assert stragglers.end(1) == []


def test_the_wait_for_a_batch_is_measured_and_the_work_on_it_is_not() -> None:
    def batches() -> Iterator[int]:
        time.sleep(0.2)
        yield 1
        until_s = time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass
        yield 2

    stragglers = Stragglers(1, 0, locations=LOCATIONS, stages=STAGES, largest=lambda own: own, measure=Given)
    reading = stragglers.reading(batches())
    assert next(reading) == 1
    waited_s = stragglers._data_s
    assert waited_s > 0.15
    assert next(reading) == 2
    assert list(reading) == [], "it ends as they do"


def test_own_seconds_are_those_of_work_and_not_of_waiting() -> None:
    own = ThreadSeconds()
    own.begin()
    time.sleep(0.3)
    own.end()
    assert own.take() < 0.2
    own.begin()
    until_s = time.thread_time() + 0.3
    while time.thread_time() < until_s:
        pass
    own.end()
    assert own.take() >= 0.25


def test_another_thread_s_work_is_not_this_rank_s() -> None:
    """This thread sleeps until another one has worked for a second. On a busy machine it then waits for a core."""
    own, worked_s = ThreadSeconds(), 1.0

    def work() -> None:
        until_s = time.thread_time() + worked_s
        while time.thread_time() < until_s:
            sum(range(1000))

    thread = threading.Thread(target=work)
    own.begin()
    thread.start()
    thread.join()
    own.end()
    assert own.take() < 0.8 * worked_s


@pytest.mark.parametrize("steps", [1, 4])
def test_it_is_a_step_s_mean(steps: int) -> None:
    own = ThreadSeconds()
    for _ in range(steps):
        own.begin()
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        own.end()
    assert own.take() >= 0.045
    assert own.take() == 0, "what was taken is taken"
