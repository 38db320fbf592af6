"""A real Slurm on this machine, from Debian's packages: munge, a controller, and a daemon for each of several nodes.

    with Slurm(nodes=2) as slurm:
        job = slurm.submit("#!/bin/bash\n#SBATCH --nodes 2\nsrun hostname")
        assert slurm.wait(job, "COMPLETED") == "COMPLETED", slurm.output(job)

All files are in a folder of its own under /tmp, which goes with it, as do all processes: they are found by the name of
that folder in their environment. Nodes n0, n1, ... lie on this machine unless `hosts` (namespaces.py) says where. Each
has 4 CPUs and 2 GPUs that are none (/dev/null under another name). The partition `high` takes nodes from jobs of `low`,
which are requeued after 15 s of grace.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.helpers.command import LAUNCHER
from tests.helpers.slurm_config import Host, local_hosts, write_config

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
INSTALL = "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")
"""states that a job does not leave by itself"""
_ROOT = Path(__file__).parents[2]
_POLL_S, _TRIES = 0.3, 5
_JOBS = 1000  # at most, of one Slurm
_BUSY = ("timed out", "Unable to contact slurm controller")
_ENDING_S = 30.0


def missing() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if absent:
        return f"Slurm is not installed here ({', '.join(absent)}): {INSTALL}"
    return None if os.geteuid() == 0 else "Slurm's daemons start jobs as root only"


class Slurm:
    """Started by `with`, and taken away at its end."""

    def __init__(self, nodes: int = 3, hosts: Sequence[Host] | None = None, controller: str = "127.0.0.1") -> None:
        self._hosts = {host.node: host for host in (hosts or local_hosts(nodes))}
        self._controller = controller
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # Slurm knows a job's processes by names of node and job, and ends what another one on this machine has there.
        self._first = (1 + secrets.randbelow(59_999)) * _JOBS
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # munge's socket needs a short path

    @property
    def nodes(self) -> list[str]:
        return list(self._hosts)

    def __enter__(self) -> Self:
        try:
            self._environment = write_config(self.directory, list(self._hosts.values()), self._controller, self._first)
            self._environment |= self._of_commands()
            munge = {name: f"--{name}={self.directory}/munge.{name}" for name in ("key-file", "pid-file", "log-file")}
            socket = f"--socket={self.directory}/munge.socket"
            seed = f"--seed-file={self.directory}/munge.seed"
            self._start("munged", ["munged", "--foreground", "--force", socket, seed, *munge.values()])
            self._until(lambda: (self.directory / "munge.socket").exists(), "munged has no socket")
            self._start("slurmctld", ["slurmctld", "-D"])
            for node in self._hosts:
                self.start_node(node)
            self._until(lambda: set(map(self.node_state, self.nodes)) == {"IDLE"}, "not all nodes are idle")
        except BaseException:
            self._take_away()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._take_away()

    def submit(self, script: str, *options: str, environment: dict[str, str] | None = None) -> int:
        """The number of the job that `sbatch OPTIONS` makes of a script's text. It runs in the folder `jobs`, with
        `pretrain` and `python` from this checkout, and its output is in `output`."""
        place = [f"--chdir={self.directory}/jobs", f"--output={self.directory}/jobs/%j.out", "--open-mode=append"]
        done = self._ask("sbatch", "--parsable", *place, *options, script=script, environment=environment)
        return int(done.split(";")[0])

    def output(self, job: int) -> str:
        """What the job has printed so far, in all its starts."""
        path = self.directory / "jobs" / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job: int) -> dict[str, str]:
        """What `scontrol show job` says of it, such as JobState, ExitCode, Restarts, Reason, NodeList."""
        return _fields(self._ask("scontrol", "--oneliner", "show", "job", str(job)))

    def state(self, job: int) -> str:
        return self.job(job)["JobState"]

    def restarts(self, job: int) -> int:
        """How many times it was requeued and started again."""
        return int(self.job(job)["Restarts"])

    def steps(self, job: int) -> list[str]:
        """Names such as `7.0` of its steps that run."""
        lines = self._ask("squeue", "--steps", "--noheader", f"--job={job}", "--format=%i").splitlines()
        return [line.strip() for line in lines if line.strip().rpartition(".")[2].isdigit()]

    def wait(self, job: int, *states: str, timeout_s: float = 300) -> str:
        """The job's state once it is one of `states` (by default: once it is over). Raises AssertionError with what it
        printed if it comes to another end, or to none in time."""
        wanted = states or OVER
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job)) not in wanted:
            assert state not in OVER, f"job {job} is {state}, not {wanted}: {self.said(job)}"
            assert time.monotonic() < deadline, f"job {job} is {state} after {timeout_s} s: {self.said(job)}"
            time.sleep(_POLL_S)
        return state

    def said(self, job: int) -> str:
        """What there is to know of a job that did not go as it should."""
        return f"{self.job(job)}\n{self.output(job)[-8000:]}"

    def node_state(self, node: str) -> str:
        """Such as IDLE, MIXED, DOWN; with `+DRAIN` and the like."""
        return _fields(self._ask("scontrol", "--oneliner", "show", "node", node)).get("State", "UNKNOWN").rstrip("*")

    def send(self, job: int, name: str, *options: str) -> None:
        """`scancel --signal NAME`: to its steps, unless `--batch` or `--full` says otherwise."""
        self._ask("scancel", f"--signal={name}", *options, str(job))

    def cancel(self, job: int) -> None:
        self._ask("scancel", str(job))

    def state_of_task(self, job: int, task: int) -> str:
        """The state of one task of an array; PENDING while Slurm has not given it a job number."""
        lines = self._ask("squeue", "--noheader", "--states=all", f"--jobs={job}_{task}", "--format=%T").split()
        return lines[0] if len(lines) == 1 else "PENDING"

    def scontrol(self, *arguments: str) -> str:
        return self._ask("scontrol", *arguments)

    def start_node(self, node: str) -> None:
        """Its daemon, where there is none. A node that was down is idle some seconds later."""
        host = self._hosts[node]
        self._start(node, [*host.enter, "slurmd", "-D", "-N", node])

    def stop_node(self, node: str, number: int = signal.SIGTERM) -> None:
        """Its daemon, with SIGKILL as a crash does; processes on the node continue."""
        daemon = self._daemons.pop(node)
        daemon.send_signal(number)
        daemon.wait(_ENDING_S)

    def has_daemon(self, node: str) -> bool:
        """Whether one was started there and not stopped."""
        return node in self._daemons

    def processes(self, of: str = "") -> list[int]:
        """All that belong to this Slurm and have `of` in their command line: daemons, jobs and what those started."""
        mark, found = str(self.directory).encode(), []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes() and of.encode() in (place / "cmdline").read_bytes():
                    found.append(int(place.name))
            except OSError:  # it is gone
                continue
        return [pid for pid in found if pid != os.getpid()]

    def clear(self) -> None:
        """Cancels all jobs, and returns once nothing of them is left and every node has come back."""
        self._ask("scancel", "--user=root", "--full", "--signal=KILL")
        self._ask("scancel", "--user=root")
        self._until(lambda: not self._ask("squeue", "--noheader").strip(), "jobs don't end")
        for node in self.nodes:
            if node not in self._daemons:
                self.start_node(node)
        self._until(lambda: set(map(self.node_state, self.nodes)) == {"IDLE"}, "not all nodes are idle again")

    def _of_commands(self) -> dict[str, str]:
        """`pretrain` and `python`, as an activated environment has them, are those of this checkout."""
        programs = self.directory / "bin"
        programs.mkdir()
        for name, more in (("python", ""), ("pretrain", " -m pretrain")):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{more} "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {"PATH": path, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}

    def _start(self, name: str, command: list[str]) -> None:
        log = (self.directory / f"{name}.printed").open("ab")
        self._daemons[name] = subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a shell on a login node."""
        mine = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        return {name: value for name, value in mine.items() if not name.startswith("SLURM")} | self._environment

    def _ask(self, *command: str, script: str | None = None, environment: dict[str, str] | None = None) -> str:
        """What the command prints. One that changes nothing is asked again where a busy controller did not answer."""
        for _ in range(_TRIES):
            done = subprocess.run(
                command,
                env=self.environment | (environment or {}),
                input="" if script is None else script,
                capture_output=True,
                text=True,
                timeout=120,
            )
            if done.returncode == 0:
                return done.stdout
            if script is not None or not any(words in done.stderr for words in _BUSY):
                break
            time.sleep(1)
        raise AssertionError(f"{command}: {done.stderr}")

    def _until(self, ready: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + 2 * _ENDING_S
        while True:
            for name, daemon in self._daemons.items():
                assert daemon.poll() is None, f"{name} ended: {self._log(name)}"
            try:
                if ready():
                    return
                reason = ""
            except AssertionError as error:  # the controller does not answer yet
                reason = str(error)
            assert time.monotonic() < deadline, f"{problem}: {reason} {self._log('slurmctld')}"
            time.sleep(_POLL_S)

    def _log(self, name: str) -> str:
        paths = self.directory.glob(f"*{name}*.printed"), self.directory.glob(f"*{name}*.log")
        return "\n".join(path.read_text(errors="replace")[-2000:] for found in paths for path in found)

    def _take_away(self) -> None:
        """Ends all of this Slurm's processes: daemons by a signal each, and then whatever is left of jobs."""
        try:
            if "slurmctld" in self._daemons:
                self._ask("scancel", "--user=root", "--full", "--signal=KILL")
                self._ask("scancel", "--user=root")
                self._until(lambda: not self._ask("squeue", "--noheader").strip(), "jobs don't end")
        except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
            print(f"not all jobs have ended by themselves: {str(error)[:500]}", file=sys.stderr)
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _ENDING_S / 3
            while (left := self.processes()) and time.monotonic() < deadline:
                for pid in left:
                    _send(pid, number)
                for daemon in self._daemons.values():
                    daemon.poll()
                time.sleep(_POLL_S)
        self._daemons.clear()
        for node in self._hosts:
            for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}/uid_*/job_*"):
                if 0 <= int(path.name.removeprefix("job_")) - self._first < _JOBS:
                    _remove_group(path)
            for pattern in (f"*/slurm_{node}/uid_*", f"*/slurm_{node}"):
                for path in Path("/sys/fs/cgroup").glob(pattern):
                    _remove(path)
        shutil.rmtree(self.directory, ignore_errors=True)


def _fields(line: str) -> dict[str, str]:
    """Parses `Key=value Key=value`, as scontrol prints it."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _remove_group(path: Path) -> None:
    """An empty control group with those in it."""
    for inner in [child for child in path.iterdir() if child.is_dir()]:
        _remove_group(inner)
    _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # one that is not empty stays
        path.rmdir()
