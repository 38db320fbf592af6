"""Starts a job's command, and again after each failure, until it is done, stopped, or of no use to start again.

It reads only exit statuses and the run's files, so the command may be ranks on this machine (`pretrain train --nproc
N`) or on many (`srun pretrain train`); where it runs is the `Machines`'s affair. Signals that ask to stop go on to the
command once, and its own status is ours then: 75 after saving.
"""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Protocol

from data_pipeline.errors import ExitStatus
from launch import attempts, presence, run_files
from launch.attempts import Attempt
from launch.policy import Decision, decide
from pretrain.process import heartbeat
from pretrain.process.signals import SIGNALS, end_with_parent, unblock

SILENCE_S = 8100.0
"""without a sign of life, after which ranks are killed: longer than they wait for each other or for a disk (2 h)"""
_AGAIN_S = 10.0
"""after which a command that was asked to stop is asked again: its ranks may not have been there yet"""
_POLL_S, _LOOK_S = 0.2, 1.0
"""for whether the command has ended; at the run's files"""
_LEAVE_S = 10.0
"""for ranks that have found that they hang; the one that stands still does not leave by itself"""


class Machines(Protocol):
    """Where attempts run."""

    @property
    def job(self) -> str | None:
        """Its number in the queue of a cluster; None: there is none."""
        ...

    @property
    def nodes(self) -> str | None: ...

    def command(self, command: Sequence[str]) -> list[str]:
        """`command` for the machines that are there now. Raises ConfigError where no layout suits them."""
        ...

    def ask_to_stop(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        """Has every process that runs the command get the signal `number`, or one that means the same to it."""
        ...

    def clear(self) -> None:
        """Ends what is left of an attempt on any machine."""
        ...

    def take_over(self, say: Callable[[str], None]) -> None:
        """Has ranks save and end that a supervisor before this one has left behind, as it was killed."""
        ...

    def leave_out(self, nodes: Sequence[str]) -> str:
        """From the next start on these are not to be used, as tests found them bad; says what was done. Does not come
        back where that ends this process."""
        ...

    def go_on_later(self) -> str:
        """Has the whole job started again, as it was stopped before its end by someone who wants it to go on; says what
        was done. Does not come back where that ends this process."""
        ...


@dataclass
class Supervisor:
    """Of one job. `directory` holds what it records; `run_dir` is the run's, for commands that have one."""

    place: Machines
    directory: Path
    run_dir: Path | None
    restarts: int
    silence_s: float
    """without a heartbeat from a run that had given one, after which its ranks are killed"""
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._asked: int | None = None
        self._hurried = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str]) -> int:
        """Returns the exit status: 0 done, 1 given up, 2 wrong command or config, 75 stopped after saving."""
        for number in SIGNALS:
            signal.signal(number, self._receive)
        unblock()
        self._record(lambda: presence.write(self.directory, self.place.job))
        self.place.take_over(self.say)
        # A job that is queued again keeps its number, and its budget; what is launched anew begins with a whole one.
        job = self.place.job
        history = [attempt for attempt in attempts.read(self.directory) if job is not None and attempt.job == job]
        if self._asked is not None:  # before there was anything to stop
            return self._stopped()
        while True:
            attempt = self._attempt(command)
            decision = self._decide([*history, attempt])
            self._record(lambda: attempts.append(self.directory, attempt, decision.why))  # noqa: B023
            history.append(attempt)
            self.say(decision.why)
            if decision.next == "over":
                return decision.status
            if decision.next == "stopped":
                return self._stopped()
            if attempt.bad_nodes:
                self.say(f"{', '.join(attempt.bad_nodes)}: found bad by tests, and left out from now on")
                self.say(self.place.leave_out(attempt.bad_nodes))
            if self._wait(decision.pause_s):
                return self._stopped()

    def _stopped(self) -> int:
        if not attempts.is_forbidden(self.directory):
            self.say(self.place.go_on_later())
        return ExitStatus.STOPPED

    def _decide(self, history: list[Attempt]) -> Decision:
        decision = decide(history, self.restarts)
        if decision.next == "again" and self._asked is not None:
            # It was asked to stop and failed instead: what it had not saved by then is lost, and nothing else.
            return Decision("stopped", f"asked to stop, it {decision.why.partition(';')[0]}")
        return decision

    def _record(self, write: Callable[[], None]) -> None:
        """A disk that is full ends no run by what we have to say of it."""
        try:
            write()
        except OSError as error:
            self.say(f"warning: {self.directory} cannot be written ({error.strerror}): this start is not recorded")

    def _attempt(self, command: Sequence[str]) -> Attempt:
        began = datetime.now(UTC)
        whole = self.place.command(command)
        # In a session of its own: a terminal's Ctrl-C comes to us, and killing reaches all that it started.
        self._process = subprocess.Popen(whole, start_new_session=True, preexec_fn=_outlive_by_a_save)
        lost, ask_s, look_s = None, 0.0, 0.0
        while (status := self._process.poll()) is None:
            if self._asked is not None and time.monotonic() >= ask_s:
                self.place.ask_to_stop(self._process, self._asked)
                # A second Ctrl-C would mean something else.
                ask_s = math.inf if self._asked == signal.SIGINT else time.monotonic() + _AGAIN_S
            if self._hurried:
                self._kill()
            if lost is None and time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                lost = self._lost(began)
                if lost is not None:
                    self.say(f"{lost}: its ranks are killed")
                    self._kill()
            time.sleep(_POLL_S)
        self.place.clear()
        found = run_files.progress(self.run_dir) if self.run_dir is not None else run_files.Reached(0, None)
        reason = (
            run_files.failure(self.run_dir, began)
            if self.run_dir is not None and status != ExitStatus.STOPPED
            else None
        )
        if lost is not None and reason is None:
            reason = f"{run_files.HUNG}: {lost}"
        return Attempt(
            began.isoformat(timespec="milliseconds"),
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            128 - status if status < 0 else status,
            found.step,
            found.saved,
            reason,
            self.place.job,
            self.place.nodes,
            run_files.refused_nodes(self.run_dir, began) if self.run_dir is not None else (),
        )

    def _lost(self, began: datetime) -> str | None:
        """Why this attempt will not end by itself: the run, having said that it lives, has said nothing for too long;
        or it has found that it hangs, and a rank that stands still keeps the others' end from being seen."""
        if self.run_dir is None:
            return None
        beat, now = heartbeat.read(self.run_dir), time.time()
        if beat is not None and began.timestamp() < beat.time < now - self.silence_s:
            return f"no sign of life for {self.silence_s:g} s"
        found = run_files.found_to_hang(self.run_dir, began)
        return "the run hangs" if found is not None and found.timestamp() < now - _LEAVE_S else None

    def _wait(self, pause_s: float) -> bool:
        """Whether a signal came in the pause."""
        end = time.monotonic() + pause_s
        while time.monotonic() < end and self._asked is None:
            time.sleep(_POLL_S)
        return self._asked is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._hurried = number == signal.SIGINT and self._asked == signal.SIGINT  # a second Ctrl-C does not wait
        self._asked = number

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def _outlive_by_a_save() -> None:
    """Ranks whose supervisor dies save and stop. srun passes this signal on; SIGTERM would have it kill them."""
    end_with_parent(signal.SIGUSR1)


def say(sentence: str) -> None:
    """In the job's log, where it can be told from what the command prints."""
    with suppress(OSError):  # the log may be on a disk that is full
        print(f"launch: {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {sentence}", file=sys.stderr, flush=True)
