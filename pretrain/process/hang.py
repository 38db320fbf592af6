"""When a run hangs, by one rank's lights, and what is done then.

The rule. A rank is *silent* when its main thread has said nothing (`beats.py`) for `hang_s`; until the first step is
done, for the mean of `hang_s` and `timeout_s`; at work on files by itself, for two hours. The run hangs when a rank is
silent and no other goes on. Each silent rank leaves a report in `run.dir/hangs/`. Ranks that have not met for as long
look there, and those that go on, or are at work on files, say so. A quarter of `hang_s` later the lowest silent rank
reads what there is. Without a word that somebody is well, it says what it found, and all silent ranks end with status
1. Ranks that meet, once a step, write and read nothing.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pretrain.process import beats, last_words
from pretrain.process.beats import Beats
from pretrain.process.hang_folder import HangFolder
from pretrain.process.hang_report import Report, stands
from pretrain.process.hang_verdict import Verdict, judge
from pretrain.process.place import Place

_GRACE = 1 / 4  # of `hang_s`, for the others' reports
_FILES_S = 2 * 3600.0  # for which a disk may keep a rank: as long as ranks wait for each other around files


@dataclass
class Seen:
    """A count, and when it was last seen to change: in seconds that the watch was awake. For a process that is stopped
    as a whole, or a machine that sleeps, no time passes."""

    value: int = 0
    at_s: float = 0.0

    def look(self, value: int, awake_s: float) -> bool:
        """Whether it has changed since the last look."""
        if value == self.value:
            return False
        self.value, self.at_s = value, awake_s
        return True


class Hang:
    """Of rank `rank` of `places`; `attempt` is how all ranks call this start of the run. A `hang_s` above half of
    `timeout_s`, after which a collective ends by itself, counts as that half."""

    def __init__(
        self, run_dir: Path, places: Sequence[Place], rank: int, attempt: str, hang_s: float, timeout_s: float,
        beats: Beats = beats.own,
    ) -> None:  # fmt: skip
        self._beats = beats
        self._run_dir, self._places, self._rank = run_dir, places, rank
        self.hang_s = min(hang_s, timeout_s / 2)
        self._first_s = (self.hang_s + timeout_s) / 2
        self._grace_s = self.hang_s * _GRACE
        self._folder = HangFolder(run_dir, attempt, rank)
        self._progress, self._meeting = Seen(), Seen()
        self._progress_time = time.time()
        self._filed_s: float | None = None
        self._answers = 0
        self._heard: dict[int, Seen] = {}
        self._deaf = False
        self.owns_run = False
        """nobody else writes to the run directory"""
        self.event: Callable[..., None] | None = None
        """writes a line of events.jsonl (name, facts), on the rank whose log is at that file; what another process adds
        to it, that log takes for damage"""

    def look(self, awake_s: float) -> None:
        """Called now and then, in a thread that does nothing else, after `awake_s` in all."""
        if self._progress.look(self._beats.count, awake_s):
            self._progress_time = time.time()
        self._meeting.look(self._beats.meetings, awake_s)
        try:
            if not self._deaf and (not self._beats.failed or self._filed_s is not None):
                self._act(awake_s)
        except OSError as error:
            self._deaf = True
            last_words.say(
                f"pretrain: warning: rank {self._rank} can't look for a hang, as {self._run_dir}/hangs can't be used "
                f"({error.strerror}): health.timeout_s still ends one"
            )

    def end(self) -> None:
        """Nothing more is looked for. What this rank has left for others to read goes, unless it ends by an error."""
        with suppress(OSError):
            if not self._beats.failed:
                self._withdraw()

    def over(self) -> bool:
        """Whether the ranks of this attempt have found that it hangs."""
        with suppress(OSError):
            return self._folder.concluded()
        return False

    def wait_for_verdict(self) -> bool:
        """The same; a rank that has reported gives the one that judges some time. For other threads."""
        until_s = time.monotonic() + 4 * self._grace_s
        while not self.over():
            if self._filed_s is None or time.monotonic() > until_s:
                return False
            time.sleep(0.05)
        return True

    def _act(self, awake_s: float) -> None:
        limit_s = self.hang_s if self._beats.meetings else self._first_s
        if awake_s - self._meeting.at_s < limit_s:  # no rank can have been silent for longer
            self._withdraw()
            return
        silent_s = awake_s - self._progress.at_s
        if silent_s < (_FILES_S if self._beats.at_files() else limit_s):
            self._answer(silent_s)
        elif self._filed_s is None:
            self._folder.file(self._report(silent_s), busy=False)
            self._filed_s = awake_s
        elif self.over():
            last_words.leave()
        elif awake_s - self._filed_s >= self._grace_s:
            self._conclude(awake_s, silent_s)

    def _withdraw(self) -> None:
        if self._filed_s is not None or self._answers:
            self._folder.withdraw()
            self._filed_s, self._answers = None, 0

    def _answer(self, silent_s: float) -> None:
        """Says that this rank is well, to others that have reported."""
        if self._filed_s is not None:
            self._withdraw()
        if self._folder.ranks("rank"):
            self._answers += 1
            self._folder.file(self._report(silent_s), busy=True)

    def _conclude(self, awake_s: float, silent_s: float) -> None:
        """For the lowest silent rank; for another where that one does not do it."""
        assert self._filed_s is not None, "it has reported"
        late = awake_s - self._filed_s >= 3 * self._grace_s
        if min(self._folder.ranks("rank"), default=self._rank) != self._rank and not late:
            return
        for rank, report in self._folder.read("busy").items():
            self._heard.setdefault(rank, Seen()).look(report.answers, awake_s)
            if awake_s - self._heard[rank].at_s < 2 * self._grace_s:  # it was stopped since, if it says no more
                return
        folder = self._folder.file(self._report(silent_s), busy=False)
        reports = self._folder.read("rank")
        verdict = judge(reports, self._places, self.hang_s, str(folder))
        self._folder.conclude(verdict.text)
        if self.owns_run:
            self._tell(verdict)
            if 0 not in reports:  # it holds the lock, and may do so for ever; it ends when it wakes (`over`)
                (self._run_dir / "lock").unlink(missing_ok=True)
        last_words.say(f"pretrain: {verdict.text}")
        time.sleep(self._grace_s)  # for the others to see that it is over, before they lose this one
        last_words.leave()

    def _tell(self, verdict: Verdict) -> None:
        lines = ("hung", verdict.facts), ("failed", {"reason": verdict.sentence, "step": verdict.facts["step"]})
        if self.event is None:
            last_words.events(self._run_dir, *lines)
        else:
            for name, facts in lines:
                self.event(name, **facts)

    def _report(self, silent_s: float) -> Report:
        found, names = stands()
        main = found[threading.main_thread().ident or 0]
        place = found.get(self._beats.awaited or 0, main)
        return Report(
            rank=self._rank,
            host=self._places[self._rank].host,
            pid=os.getpid(),
            step=self._beats.step,
            doing=self._beats.doing,
            silent_s=round(silent_s, 1),
            since=datetime.fromtimestamp(self._progress_time, UTC).isoformat(timespec="seconds"),
            waits_in=place.waits_in,
            line=place.line,
            stack=main.stack,
            others={
                names[ident]: one.stack
                for ident, one in found.items()
                if one is not main and ident != threading.get_ident()
            },
            answers=self._answers,
        )
