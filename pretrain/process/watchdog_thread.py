"""The watchdog's thread, one in each rank. It polls what the main thread reports (`watchdog.py`), writes the run's
heartbeat, and ends the rank when the run hangs (`hang_detector.py`).

    with WatchdogThread(run_dir, locations, rank, attempt, hang_s=300, timeout_s=600) as thread: ...
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pretrain.process import emergency_exit, watchdog
from pretrain.process.hang_detector import HangDetector
from pretrain.process.rank_location import RankLocation
from pretrain.run_dir import heartbeat
from pretrain.run_dir.heartbeat import Heartbeat

_POLLS = 16  # within `hang_s`
_LONGEST_S, _SHORTEST_S = 5.0, 0.05  # between two polls
_JOIN_S = 10.0  # a disk may not answer when the thread is to end

_current: "WatchdogThread | None" = None


def exit_if_hung() -> None:
    """Ends this process, without a message, if the ranks of its attempt found that the run hangs: they have reported
    it, and the run directory may belong to a newer attempt by now."""
    if _current is not None and _current.detector is not None and _current.detector.wait_for_verdict():
        emergency_exit.exit_now()


class WatchdogThread:
    """The watchdog of rank `rank`, where `locations` lists all ranks and `attempt` names this start of the run on all
    of them. With a `hang_s` of None or 0 it only writes the heartbeat."""

    def __init__(
        self,
        run_dir: Path,
        locations: Sequence[RankLocation],
        rank: int,
        attempt: str,
        *,
        hang_s: float | None,
        timeout_s: float,
    ) -> None:
        watchdog.record.reset()
        self._run_dir, self._location = run_dir, locations[rank] if rank == 0 else None
        self.detector = (
            HangDetector(run_dir, locations, rank, attempt, hang_s=hang_s, timeout_s=timeout_s) if hang_s else None
        )
        shortest_s = self.detector.hang_s / _POLLS if self.detector is not None else _LONGEST_S
        self._every_s = min(max(shortest_s, _SHORTEST_S), _LONGEST_S)
        self._owns_run = False
        self._written_kicks, self._written_s = 0, float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def set_run_owned(self, lock: Path) -> None:
        """Says that from now on no other process writes to the run directory, whose `lock` rank 0 holds."""
        self._owns_run = True
        if self.detector is not None:
            self.detector.owns_run, self.detector.lock = True, lock

    def set_event_log(self, event: Callable[..., None]) -> None:
        """Has events written by `event` (name, facts): this process has events.jsonl open."""
        if self.detector is not None:
            self.detector.event = event

    def __enter__(self) -> "WatchdogThread":
        global _current
        _current = self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watch: from here on ranks may be slower than each other. May be called again."""
        self._ended.set()
        self._thread.join(_JOIN_S)
        if self.detector is not None:
            self.detector.close()

    def _run(self) -> None:
        before_s, awake_s = time.monotonic(), 0.0
        while not self._ended.wait(self._every_s):
            now_s = time.monotonic()
            passed_s, before_s = now_s - before_s, now_s
            awake_s += min(passed_s, 2 * self._every_s)  # for the rest of the time this process was stopped
            if self.detector is not None:
                if passed_s > 4 * self._every_s and self.detector.is_concluded():
                    emergency_exit.exit_now()
                self.detector.poll(awake_s)
            self._write_heartbeat(now_s)

    def _write_heartbeat(self, now_s: float) -> None:
        if self._location is None or not self._owns_run or now_s - self._written_s < heartbeat.EVERY_S:
            return
        if watchdog.record.kicks != self._written_kicks:
            self._written_kicks, self._written_s = watchdog.record.kicks, now_s
            beat = Heartbeat(
                time.time(), watchdog.record.step, watchdog.record.activity, self._location.host, self._location.pid
            )
            with suppress(OSError):  # the writers of checkpoints and metrics report a bad disk
                heartbeat.write(self._run_dir, beat)
