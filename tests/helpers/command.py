"""The `pretrain` command as processes forked from the server of `ranks.py`, where a fresh interpreter costs seconds.

    processes = start(["train", "config.yaml", "parallel.tensor=2"], 2, directory, log)  # a launcher's ranks
    done = run("train", "config.yaml", "parallel.tensor=2", "--nproc", 2)                # as typed in a shell
    assert done.returncode == 0, done.stderr

Each is what `python -m pretrain ARGUMENTS` runs: its own arguments, environment, working directory, output and exit
status. Where `--nproc` has it start ranks, its launcher forks them too.
"""

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess, _children  # type: ignore[attr-defined]
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import NoReturn

from pretrain.process.local import free_port
from pretrain.process.signals import SIGNALS
from tests.helpers.ranks import context

TRACEBACK = signal.SIGUSR2
"""has a process print where its threads are"""
_STARTING = Lock()
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""what a launcher sets"""


def start(arguments: list[str], world: int, directory: Path, log: Path) -> list[BaseProcess]:
    """`pretrain ARGUMENTS` in `directory` on `world` ranks (without a launcher's variables if it is one), in rank
    order. What they print is added to `log`."""
    port = free_port()
    processes = []
    for rank in range(world):
        values = (rank, world, rank, world, "127.0.0.1", port)
        environment = {name: str(value) for name, value in zip(LAUNCHER, values, strict=True)} if world > 1 else {}
        processes.append(_fork(arguments, environment, directory, log, log, None))
    return processes


class Command:
    """One start of `pretrain ARGUMENTS` without a launcher's variables, in this process's working directory. `first` is
    called in it before the command. It has of a subprocess.Popen what tests use."""

    def __init__(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        first: Callable[[], object] | None = None,
    ) -> None:
        files = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, files, ignore_errors=True)
        self._stdout, self._stderr = files / "stdout", files / "stderr"
        self._process = _fork(
            list(map(str, arguments)), dict(environment or {}), Path.cwd(), self._stdout, self._stderr, first
        )
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """The exit status; of one that a signal ended, the signal's number, negative. Raises AssertionError with what
        was printed if there is none by then, and ends the command."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self.kill()
            raise AssertionError(f"the command did not end within {timeout_s} s:\n{self.printed}")
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def stdout(self) -> str:
        return self._stdout.read_text() if self._stdout.exists() else ""

    @property
    def stderr(self) -> str:
        return self._stderr.read_text() if self._stderr.exists() else ""

    @property
    def printed(self) -> str:
        return self.stdout + self.stderr


def run(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """`pretrain ARGUMENTS` to its end."""
    command = Command(*arguments)
    status = command.wait(timeout_s)
    return subprocess.CompletedProcess(["pretrain", *map(str, arguments)], status, command.stdout, command.stderr)


def _fork(
    arguments: list[str],
    environment: dict[str, str],
    directory: Path,
    log: Path,
    errors: Path,
    first: Callable[[], object] | None,
) -> BaseProcess:
    process = context.Process(target=_run, args=(arguments, environment, directory, log, errors, first), daemon=True)
    with _STARTING:
        process.start()
        # Whoever starts another asks all of these for their status, which can be read but once.
        _children.discard(process)
    return process


def _run(
    arguments: list[str],
    environment: dict[str, str],
    directory: Path,
    log: Path,
    errors: Path,
    first: Callable[[], object] | None,
) -> None:
    for number, path in ((1, log), (2, errors)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
    faulthandler.register(TRACEBACK, file=2)
    os.chdir(directory)
    for name in LAUNCHER:
        os.environ.pop(name, None)
    os.environ.update(environment, OMP_NUM_THREADS="1")
    import torch

    import pretrain.process.local

    torch.set_num_threads(1)
    pretrain.process.local.subprocess = SimpleNamespace(Popen=_Rank)  # type: ignore[attr-defined]
    if first is not None:
        first()
    _enter(arguments)


def _enter(arguments: list[str]) -> NoReturn:
    from pretrain.__main__ import entry

    sys.argv = ["pretrain", *arguments]
    entry()
    raise AssertionError("the command returned")


class _Rank:
    """What `process/local.py` uses of the subprocess.Popen of a rank, which is forked instead: from the launcher."""

    def __init__(
        self, command: list[str], env: dict[str, str], process_group: int, preexec_fn: Callable[[], object]
    ) -> None:
        assert command[:3] == [sys.executable, "-m", "pretrain"]
        self.returncode: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            os.setpgid(0, process_group)
            preexec_fn()
            for number in SIGNALS:  # blocked by the launcher until here
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(env)
            _enter(command[3:])

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
