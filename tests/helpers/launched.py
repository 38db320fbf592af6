"""A run that the real command has submitted to a Slurm of these tests (slurm.py), and what can be done to it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretrain.process.slurm import hosts
from pretrain.run_dir.records import read_metrics
from tests.helpers.slurm import Slurm


class Launched:
    """`pretrain launch slurm WORDS`, of which `run` is the directory."""

    def __init__(self, cluster: Slurm, run: Path, *words: str) -> None:
        self.cluster, self.run = cluster, run
        self.jobs = launch(cluster, *words)
        self.job = self.jobs[-1]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        path = self.run / "launch" / "attempts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in (self.run / "launch" / "logs").glob("*.out"))

    def reach(self, steps: int, timeout_s: float = 600) -> None:
        """Until so many steps are on record."""
        deadline = time.monotonic() + timeout_s
        while not (found := read_metrics(self.run)) or found[-1]["step"] < steps:
            assert self.cluster.state(self.job) in ("PENDING", "RUNNING", "COMPLETING"), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def wait(self, *states: str, timeout_s: float = 900) -> None:
        """Until the job is in one of `states` (COMPLETED)."""
        try:
            self.cluster.wait(self.job, *(states or ("COMPLETED",)), timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-6000:]}") from None

    def said(self) -> str:
        return f"{self.cluster.said(self.job)}\n{self.log[-6000:]}"

    def release(self) -> None:
        """Starts a requeued job at once, which Slurm would hold for a while."""
        self.cluster.scontrol("update", f"jobid={self.job}", "starttime=now")

    def nodes(self) -> list[str]:
        """On which its job runs."""
        return hosts(self.cluster.job(self.job)["NodeList"])

    def ranks(self) -> list[int]:
        """Processes that train."""
        return self._processes("pretrain\0train", lambda line: b"supervise" not in line and b"srun" not in line)

    def srun(self) -> list[int]:
        """Processes that start ranks."""
        return self._processes("srun\0", lambda line: b"supervise" not in line)

    def supervisors(self) -> tuple[list[int], list[int]]:
        """(guards, which are the job's script; supervisors, which they look after)."""
        found = self._processes("launch.slurm.supervise", lambda line: b"srun" not in line.split(b"\0")[0])
        return [pid for pid in found if _parent(pid) not in found], [pid for pid in found if _parent(pid) in found]

    def _processes(self, of: str, among: Callable[[bytes], bool]) -> list[int]:
        return [pid for pid in self.cluster.processes(of) if (line := _read(pid, "cmdline")) and among(line)]


def fail_node(cluster: Slurm, node: str) -> None:
    """Kills a node as a power failure does: its daemon, its processes, and those through which Slurm watches them."""
    cluster.stop_node(node, signal.SIGKILL)
    here = {pid for pid in cluster.processes() if f"\0SLURMD_NODENAME={node}\0".encode() in _read(pid, "environ")}
    for pid in {_parent(pid) for pid in here} - here:
        if _read(pid, "cmdline").startswith(b"slurmstepd"):
            kill(pid)
    for pid in here:
        kill(pid)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def launch(cluster: Slurm, *words: str) -> list[int]:
    """The numbers of the jobs that `pretrain launch slurm WORDS` submits."""
    done = pretrain(cluster, "launch", "slurm", *words)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in re.findall(r"^job (\d+):", done.stdout, re.MULTILINE)]


def pretrain(cluster: Slurm, *words: object) -> subprocess.CompletedProcess[str]:
    """The command, on a login node."""
    return subprocess.run(
        [sys.executable, "-m", "pretrain", *map(str, words)], env=cluster.environment, capture_output=True, text=True
    )


def python_that(directory: Path, code: str) -> str:
    """A Python for ranks (--python) in which `code` has run before anything of ours."""
    (directory / "that.py").write_text(
        "import runpy, signal, sys\n"
        "from pretrain.process.signals import SIGNALS\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until our own can take them\n"
        f"{code}\n"
        "sys.argv = sys.argv[2:]\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    program = directory / "that"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {directory}/that.py "$@"\n')
    program.chmod(0o755)
    return str(program)


def assert_same(run: Path, whole: list[dict[str, Any]]) -> None:
    steps = read_metrics(run)
    for key in ("step", "loss", "grad_norm", "data_hash"):
        assert [line[key] for line in steps] == [line[key] for line in whole], key


def _parent(pid: int) -> int:
    found = _read(pid, "stat")
    return int(found.rpartition(b")")[2].split()[1]) if found else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it is gone
        return b""
