"""The watch: a thread of each rank that sees whether the main thread goes on. It leaves the run's heartbeat, and ends
the rank where the run hangs (`hang.py`).

    with Watch(run_dir, places, rank, attempt, hang_s, timeout_s) as watch: ...
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pretrain.process import beats, heartbeat, last_words
from pretrain.process.hang import Hang
from pretrain.process.heartbeat import Heartbeat
from pretrain.process.place import Place

_LOOKS = 16  # within `hang_s`
_LONGEST_S, _SHORTEST_S = 5.0, 0.05  # between two looks
_PATIENCE_S = 10.0  # with a disk that does not answer, at the end

_current: "Watch | None" = None


def leave_if_over() -> None:
    """Ends this process, without a word, if it belongs to an attempt that others have found to hang. They have said so,
    and the run may be a newer attempt's by now."""
    if _current is not None and _current.hang is not None and _current.hang.wait_for_verdict():
        last_words.leave()


class Watch:
    """Of rank `rank` of `places`, in the start of the run that all of them call `attempt`. A `hang_s` of None or 0
    leaves the heartbeat alone."""

    def __init__(
        self, run_dir: Path, places: Sequence[Place], rank: int, attempt: str, hang_s: float | None, timeout_s: float
    ) -> None:
        beats.own.begin()
        self._run_dir, self._place = run_dir, places[rank] if rank == 0 else None
        self.hang = Hang(run_dir, places, rank, attempt, hang_s, timeout_s) if hang_s else None
        shortest_s = self.hang.hang_s / _LOOKS if self.hang is not None else _LONGEST_S
        self._every_s = min(max(shortest_s, _SHORTEST_S), _LONGEST_S)
        self._owns_run = False
        self._told, self._told_s = 0, float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def owns_run(self) -> None:
        """Nobody else writes to the run directory, from now on."""
        self._owns_run = True
        if self.hang is not None:
            self.hang.owns_run = True

    def tells(self, event: Callable[..., None]) -> None:
        """This process writes events.jsonl, by `event` (name, facts) alone."""
        if self.hang is not None:
            self.hang.event = event

    def __enter__(self) -> "Watch":
        global _current
        _current = self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ranks part: from here on one may be slower than the others. May be called again."""
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        if self.hang is not None:
            self.hang.end()

    def _run(self) -> None:
        before_s, awake_s = time.monotonic(), 0.0
        while not self._ended.wait(self._every_s):
            now_s = time.monotonic()
            passed_s, before_s = now_s - before_s, now_s
            awake_s += min(passed_s, 2 * self._every_s)  # the rest it was not: this process was stopped
            if self.hang is not None:
                if passed_s > 4 * self._every_s and self.hang.over():
                    last_words.leave()
                self.hang.look(awake_s)
            self._leave_heartbeat(now_s)

    def _leave_heartbeat(self, now_s: float) -> None:
        if self._place is None or not self._owns_run or now_s - self._told_s < heartbeat.EVERY_S:
            return
        if beats.own.count != self._told:
            self._told, self._told_s = beats.own.count, now_s
            told = Heartbeat(time.time(), beats.own.step, beats.own.doing, self._place.host, self._place.pid)
            with suppress(OSError):  # those who write what matters have more to say of the disk
                heartbeat.write(self._run_dir, told)
