"""Hang detection: when a run counts as hung, as seen by one rank, and what that rank does then.

The rule. A rank is *silent* when its main thread has not kicked the watchdog (`watchdog.py`) for `hang_s`; before the
first step is done, for the mean of `hang_s` and `timeout_s`; during file access, for two hours. The run hangs when a
rank is silent and no other rank makes progress. Each silent rank writes a report into `hangs/` of the run. Ranks that
have seen no collective for as long look there, and those that make progress, or access files, write that they are
busy. A quarter of `hang_s` later the lowest silent rank reads all reports. If no rank is busy, it prints the verdict,
and all silent ranks exit with status 1. While collectives are done, once a step, no rank reads or writes a file.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pretrain.process import emergency_exit, watchdog
from pretrain.process.hang_folder import HangFolder
from pretrain.process.hang_report import Report, thread_states
from pretrain.process.hang_verdict import HangVerdict, judge
from pretrain.process.rank_location import RankLocation
from pretrain.process.watchdog import ActivityRecord
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import append_events

_GRACE = 1 / 4  # of `hang_s`, for the reports of other ranks
_IO_S = 2 * 3600.0  # limit for file access: as long as ranks wait for each other around files


@dataclass
class LastChange:
    """A counter and the time of its last change, in seconds that the watchdog was awake: while the process is stopped,
    or the machine sleeps, no time passes."""

    value: int = 0
    at_s: float = 0.0

    def update(self, value: int, awake_s: float) -> bool:
        """Stores the value. Returns whether it changed."""
        if value == self.value:
            return False
        self.value, self.at_s = value, awake_s
        return True


class HangDetector:
    """The detector of rank `rank`, where `locations` lists all ranks and `attempt` names this start of the run on all
    of them. `hang_s` is limited to half of `timeout_s`, after which a collective ends by itself."""

    def __init__(
        self,
        run_dir: Path,
        locations: Sequence[RankLocation],
        rank: int,
        attempt: str,
        *,
        hang_s: float,
        timeout_s: float,
        record: ActivityRecord = watchdog.record,
    ) -> None:
        self._record = record
        self._run_dir, self._locations, self._rank = run_dir, locations, rank
        self.hang_s = min(hang_s, timeout_s / 2)
        self._first_s = (self.hang_s + timeout_s) / 2
        self._grace_s = self.hang_s * _GRACE
        self._folder = HangFolder(run_dir, attempt, rank)
        self._progress, self._collective = LastChange(), LastChange()
        self._progress_time = time.time()
        self._filed_s: float | None = None
        self._answers = 0
        self._busy_seen: dict[int, LastChange] = {}
        self._disabled = False
        self.owns_run = False
        """whether no other process writes to the run directory"""
        self.lock = RunDir(run_dir).lock
        """file that rank 0 holds locked, so that none does"""
        self.event: Callable[..., None] | None = None
        """writes an event (name, facts) to events.jsonl, on the rank that has this file open, whose log would take
        lines of another process for damage"""

    def poll(self, awake_s: float) -> None:
        """Applies the rule once; for a thread of its own, which has been awake for `awake_s` in total."""
        if self._progress.update(self._record.kicks, awake_s):
            self._progress_time = time.time()
        self._collective.update(self._record.collectives, awake_s)
        try:
            if not self._disabled and (not self._record.failing or self._filed_s is not None):
                self._act(awake_s)
        except OSError as error:
            self._disabled = True
            folder = RunDir(self._run_dir).hangs
            emergency_exit.print_message(
                f"pretrain: warning: rank {self._rank} cannot detect a hang: {folder} cannot be used "
                f"({error.strerror}). health.timeout_s still ends a hang"
            )

    def close(self) -> None:
        """Ends detection. Removes this rank's files from the folder of reports, unless the rank ends with an error."""
        with suppress(OSError):
            if not self._record.failing:
                self._withdraw()

    def is_concluded(self) -> bool:
        """Whether a rank of this attempt concluded that the run hangs."""
        with suppress(OSError):
            return self._folder.concluded()
        return False

    def wait_for_verdict(self) -> bool:
        """Whether a rank concluded that the run hangs. If this rank has reported, waits for the judging rank for a
        while. For threads other than the watchdog's."""
        until_s = time.monotonic() + 4 * self._grace_s
        while not self.is_concluded():
            if self._filed_s is None or time.monotonic() > until_s:
                return False
            time.sleep(0.05)
        return True

    def _act(self, awake_s: float) -> None:
        limit_s = self.hang_s if self._record.collectives else self._first_s
        if awake_s - self._collective.at_s < limit_s:  # no rank can be silent for longer than that
            self._withdraw()
            return
        silent_s = awake_s - self._progress.at_s
        if silent_s < (_IO_S if self._record.in_slow_io() else limit_s):
            self._report_busy(silent_s)
        elif self._filed_s is None:
            self._folder.write(self._report(silent_s), busy=False)
            self._filed_s = awake_s
        elif self.is_concluded():
            emergency_exit.exit_now()
        elif awake_s - self._filed_s >= self._grace_s:
            self._conclude(awake_s, silent_s)

    def _withdraw(self) -> None:
        if self._filed_s is not None or self._answers:
            self._folder.withdraw()
            self._filed_s, self._answers = None, 0

    def _report_busy(self, silent_s: float) -> None:
        """Writes that this rank makes progress, where others have reported."""
        if self._filed_s is not None:
            self._withdraw()
        if self._folder.ranks("rank"):
            self._answers += 1
            self._folder.write(self._report(silent_s), busy=True)

    def _conclude(self, awake_s: float, silent_s: float) -> None:
        """Judges the reports, on the lowest silent rank, or later on another if that one does not."""
        assert self._filed_s is not None, "it has reported"
        late = awake_s - self._filed_s >= 3 * self._grace_s
        if min(self._folder.ranks("rank"), default=self._rank) != self._rank and not late:
            return
        for rank, report in self._folder.read("busy").items():
            self._busy_seen.setdefault(rank, LastChange()).update(report.answers, awake_s)
            if (
                awake_s - self._busy_seen[rank].at_s < 2 * self._grace_s
            ):  # a rank that was stopped since no longer answers
                return
        folder = self._folder.write(self._report(silent_s), busy=False)
        reports = self._folder.read("rank")
        verdict = judge(reports, self._locations, self.hang_s, str(folder))
        self._folder.conclude(verdict.text)
        if self.owns_run:
            self._write_events(verdict)
            if 0 not in reports:  # it holds the lock, maybe for ever; it exits when it wakes (`is_concluded`)
                self.lock.unlink(missing_ok=True)
        emergency_exit.print_message(f"pretrain: {verdict.text}")
        time.sleep(self._grace_s)  # for other ranks to read the verdict before they lose this one
        emergency_exit.exit_now()

    def _write_events(self, verdict: HangVerdict) -> None:
        lines = ("hung", verdict.facts), ("failed", {"reason": verdict.sentence, "step": verdict.facts["step"]})
        if self.event is None:
            with suppress(OSError):
                append_events(self._run_dir, *lines)
        else:
            for name, facts in lines:
                self.event(name, **facts)

    def _report(self, silent_s: float) -> Report:
        states, names = thread_states()
        main = states[threading.main_thread().ident or 0]
        waiting = states.get(self._record.awaited_thread or 0, main)
        return Report(
            rank=self._rank,
            host=self._locations[self._rank].host,
            pid=os.getpid(),
            step=self._record.step,
            activity=self._record.activity,
            silent_s=round(silent_s, 1),
            since=datetime.fromtimestamp(self._progress_time, UTC).isoformat(timespec="seconds"),
            waits_in=waiting.waits_in,
            line=waiting.line,
            stack=main.stack,
            others={
                names[ident]: state.stack
                for ident, state in states.items()
                if state is not main and ident != threading.get_ident()
            },
            answers=self._answers,
        )
