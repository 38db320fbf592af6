"""What the watch and the comparison of ranks cost a training step, in microseconds of the main thread's CPU time.

    python -m tests.benchmarks.watchdog

By part: what the loop and the engine call in a step of 8 micro-batches, without an exchange (one in
`health.straggler_steps`, of 24 bytes a rank). And what one poll of the watchdog's thread takes, which comes 16 times in
`health.hang_s`, every 5 s at most.
"""

import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from pretrain.observe.own_seconds import ThreadSeconds
from pretrain.observe.stragglers import Stragglers
from pretrain.process import watchdog
from pretrain.process.hang_detector import HangDetector
from pretrain.process.rank_location import RankLocation

_TIMES, _ROUNDS, _MICRO_BATCHES = 2000, 7, 8


def main() -> None:
    locations = [RankLocation("node", rank, rank) for rank in range(1024)]
    stragglers = Stragglers(
        10**9, 0, locations=locations, stages=[0] * len(locations), largest=lambda own: own, measure=ThreadSeconds
    )
    batches, plain = stragglers.reading(repeat(1)), repeat(1)

    def said() -> None:
        watchdog.kick(f"step {watchdog.record.step + 1}", watchdog.record.step + 1)
        for _ in range(_MICRO_BATCHES):
            watchdog.kick()
        watchdog.collective_done()

    def compared() -> None:
        stragglers.begin()
        stragglers.end(1)

    with tempfile.TemporaryDirectory() as directory:
        detector = HangDetector(Path(directory), locations, 0, "a", hang_s=300.0, timeout_s=600.0)
        rows = {
            "reports of the main thread": _microseconds(said),
            "its own seconds": _microseconds(compared),
            "the wait for its batch": _microseconds(lambda: next(batches)) - _microseconds(lambda: next(plain)),
            "one poll of the watchdog": _microseconds(lambda: detector.poll(1.0)),
        }
    for name, cost in rows.items():
        print(f"{name:28} {cost:8.2f}")


def _microseconds(work: Callable[[], object]) -> float:
    """Microseconds of one call, in the best of some rounds."""
    rounds = []
    for _ in range(_ROUNDS):
        started_s = time.thread_time()
        for _ in range(_TIMES):
            work()
        rounds.append((time.thread_time() - started_s) / _TIMES * 1e6)
    return min(rounds)


if __name__ == "__main__":
    main()
