"""Runs a job's command and restarts it after each failure, until it is done, stopped, or a restart would not help.

The supervisor reads only exit statuses and the run's files, so the command may be ranks on this machine (`pretrain
train --nproc N`) or on many (`srun pretrain train`); a `Placement` decides where it runs. Signals that request a stop
are forwarded to the command, and the supervisor then exits with its status: 75 after saving.
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
from launch import attempts, presence, run_progress
from launch.attempts import Attempt
from launch.policy import Decision, decide
from pretrain.process.signals import SIGNALS, end_with_parent, unblock
from pretrain.run_dir import heartbeat

SILENCE_S = 8100.0
"""Seconds without a heartbeat after which ranks are killed: longer than ranks or disks are waited for (2 h)."""
_AGAIN_S = 10.0
"""Seconds after which a request to stop is repeated: the ranks may not have started yet."""
_POLL_S, _LOOK_S = 0.2, 1.0
"""Seconds between two polls of the command, and of the run's files."""
_LEAVE_S = 10.0
"""Seconds for ranks to exit after they have reported a hang; the hung one may never exit."""


class Placement(Protocol):
    """Machines that attempts run on."""

    @property
    def job(self) -> str | None:
        """Slurm job id; None: no Slurm."""
        ...

    @property
    def nodes(self) -> str | None: ...

    def command(self, command: Sequence[str]) -> list[str]:
        """Command line that runs `command` on the machines available now. Raises ConfigError if no layout suits."""
        ...

    def ask_to_stop(self, process: "subprocess.Popen[bytes]", number: int) -> None:
        """Sends the signal `number`, or an equivalent one, to every process that runs the command."""
        ...

    def clear(self) -> None:
        """Kills what is left of an attempt on any machine."""
        ...

    def adopt_orphaned_ranks(self, say: Callable[[str], None]) -> None:
        """Stops ranks that a killed supervisor has left running, after they have saved."""
        ...

    def exclude_nodes(self, nodes: Sequence[str]) -> str:
        """Excludes nodes that preflight tests refused, or that computed wrong, from the next start on; returns what was
        done. Does not return if that ends this process."""
        ...

    def end_cancelled(self) -> None:
        """Has the queue record that the job, which has saved, was cancelled: to Slurm, any status but 0 is a
        failure."""
        ...

    def requeue(self) -> str:
        """Requeues the job, which was stopped before its end but not cancelled; returns what was done. Does not return
        if that ends this process."""
        ...


@dataclass
class Supervisor:
    """Supervisor of one job. `directory` holds its records; `run_dir` is that of the run, if there is one."""

    placement: Placement
    directory: Path
    run_dir: Path | None
    restarts: int
    silence_s: float
    """Seconds since the last heartbeat after which ranks are killed."""
    say: Callable[[str], None]
    policy: Callable[[Sequence[Attempt], int], Decision] = decide
    """Function that decides what to do after the last of some attempts, with at most so many restarts."""

    def __post_init__(self) -> None:
        self._signal: int | None = None
        self._kill_now = False

    def run(self, command: Sequence[str]) -> int:
        """Runs `command` to its end. Returns the exit status: 0 done, 1 failed, 2 wrong command or config, 75
        stopped after saving."""
        for number in SIGNALS:
            signal.signal(number, self._receive)
        unblock()
        self._record(lambda: presence.write(self.directory, self.placement.job))
        self.placement.adopt_orphaned_ranks(self.say)
        # A requeued job keeps its id and its count of failures; a new job starts at 0.
        job = self.placement.job
        history = [attempt for attempt in attempts.read(self.directory) if job is not None and attempt.job == job]
        if self._signal is not None:  # before anything was started
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
                names = ", ".join(attempt.bad_nodes)
                self.say(f"{names}: failed the preflight tests or a replayed step, and excluded from now on")
                self.say(self.placement.exclude_nodes(attempt.bad_nodes))
            if self._wait(decision.pause_s):
                return self._stopped()

    def _stopped(self) -> int:
        if attempts.is_forbidden(self.directory):
            self.placement.end_cancelled()
        else:
            self.say(self.placement.requeue())
        return ExitStatus.STOPPED

    def _decide(self, history: list[Attempt]) -> Decision:
        decision = self.policy(history, self.restarts)
        if decision.next == "again" and self._signal is not None:
            # It failed after a request to stop: only the steps since its newest checkpoint are lost.
            return Decision("stopped", f"on a request to stop, it {decision.why.partition(';')[0]}")
        return decision

    def _record(self, write: Callable[[], None]) -> None:
        """Writes a record. A full disk is reported and does not end the run."""
        try:
            write()
        except OSError as error:
            self.say(f"warning: {self.directory} cannot be written ({error.strerror}): this attempt is not recorded")

    def _attempt(self, command: Sequence[str]) -> Attempt:
        began = datetime.now(UTC)
        arguments = self.placement.command(command)
        # In its own session: a terminal's Ctrl-C reaches only us, and a kill reaches its group.
        process = subprocess.Popen(arguments, start_new_session=True, preexec_fn=_outlive_by_a_save)
        hang, stop_s, look_s = None, 0.0, 0.0
        while (status := process.poll()) is None:
            if self._signal is not None and time.monotonic() >= stop_s:
                self.placement.ask_to_stop(process, self._signal)
                # A second SIGINT would end the ranks without a save.
                stop_s = math.inf if self._signal == signal.SIGINT else time.monotonic() + _AGAIN_S
            if self._kill_now:
                _kill(process)
            if hang is None and time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                hang = self._hang(began)
                if hang is not None:
                    self.say(f"{hang}: its ranks are killed")
                    _kill(process)
            time.sleep(_POLL_S)
        self.placement.clear()
        found = run_progress.progress(self.run_dir) if self.run_dir is not None else run_progress.RunProgress(0, None)
        reason = (
            run_progress.failure(self.run_dir, began)
            if self.run_dir is not None and status != ExitStatus.STOPPED
            else None
        )
        if hang is not None and reason is None:
            reason = f"{run_progress.HUNG}: {hang}"
        return Attempt(
            began=began.isoformat(timespec="milliseconds"),
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            status=128 - status if status < 0 else status,
            step=found.step,
            saved=found.saved,
            reason=reason,
            job=self.placement.job,
            nodes=self.placement.nodes,
            bad_nodes=run_progress.bad_nodes(self.run_dir, began) if self.run_dir is not None else (),
        )

    def _hang(self, began: datetime) -> str | None:
        """Why this attempt will not end by itself: its heartbeat has stopped, or it has reported a hang and a rank has
        not exited; None: it is alive."""
        if self.run_dir is None:
            return None
        beat, now = heartbeat.read(self.run_dir), time.time()
        if beat is not None and began.timestamp() < beat.time < now - self.silence_s:
            return f"no heartbeat for {self.silence_s:g} s"
        found = run_progress.found_to_hang(self.run_dir, began)
        return "the run hangs" if found is not None and found.timestamp() < now - _LEAVE_S else None

    def _wait(self, pause_s: float) -> bool:
        """Pauses before the next start. Returns whether a signal arrived during the pause."""
        end = time.monotonic() + pause_s
        while time.monotonic() < end and self._signal is None:
            time.sleep(_POLL_S)
        return self._signal is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C does not wait for a save, whatever comes after it.
        self._kill_now |= number == signal.SIGINT and self._signal == signal.SIGINT
        self._signal = number


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _outlive_by_a_save() -> None:
    """Has ranks save and stop when their supervisor dies. srun forwards SIGUSR1; on SIGTERM it would kill them."""
    end_with_parent(signal.SIGUSR1)


def say(sentence: str) -> None:
    """Prints to the job's log, with a prefix that distinguishes it from the command's own output."""
    with suppress(OSError):  # the log may be on a full disk
        print(f"launch: {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {sentence}", file=sys.stderr, flush=True)
