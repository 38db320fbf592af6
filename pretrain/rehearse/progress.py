"""Progress of a rehearsal, on standard error: the number of ranks that are done, while others are rehearsed."""

import sys
import time
from typing import TextIO

from data_pipeline.common.live_line import LiveLine
from pretrain.observe.progress import duration
from pretrain.rehearse.rank_rehearsal import RankRehearsal

_BAR = 20


class RehearsalProgress:
    """A bar on a terminal, a line for each rank in a log."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._line = LiveLine(stream or sys.stderr)
        self._begun_s, self._done = time.monotonic(), 0

    def add(self, rank: RankRehearsal, total: int) -> None:
        """`rank` is done, one of `total`."""
        self._done += 1
        passed_s = time.monotonic() - self._begun_s
        if self._line.is_live:
            bar = ("#" * (_BAR * self._done // total)).ljust(_BAR, ".")
            left = duration(passed_s * (total - self._done) / self._done)
            self._line.show(f"[{bar}] {self._done} of {total} ranks, about {left} left", now=True)
        else:
            self._line.say(f"rank {rank.rank}: {rank.cpu_s:.0f} s of a core ({self._done} of {total})")

    def close(self) -> None:
        """Ends the line."""
        self._line.close()
