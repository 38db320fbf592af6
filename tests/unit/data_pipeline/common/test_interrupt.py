"""Ctrl-C while processes are at work: one sentence, status 75, nothing left running, and what is done is kept."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from data_pipeline.common.interrupt import SIGNALS, exit_on_signal
from data_pipeline.errors import ExitStatus

WAIT_S = 60.0


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """In a session of its own, as a terminal's foreground job."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.slow_tasks", str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # also where tests run under nohup
    )


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def session(leader: int) -> list[int]:
    """Processes of a session, but for its leader and dead ones."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader != int(stat.parent.name) and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("whom", ["the whole group, as a terminal does", "the command alone"])
def test_ctrl_c_is_one_sentence_and_the_same_command_goes_on(whom: str, tmp_path: Path) -> None:
    begun = [tmp_path / name for name in ("0.done.json", "1.done.json", "begun-2", "begun-3")]
    command = start(tmp_path, 600)
    wait_for(lambda: all(path.exists() for path in begun))
    assert begun[2].read_text() == "SIGHUP SIGINT SIGUSR1 SIGTERM", "a worker has nothing to say"
    send = os.killpg if whom.startswith("the whole") else os.kill
    send(command.pid, signal.SIGINT)
    printed = command.communicate(timeout=WAIT_S)
    assert (command.returncode, *printed) == (ExitStatus.STOPPED, "", "stopped; the same command goes on\n")
    wait_for(lambda: not session(command.pid))
    (tmp_path / "begun-0").unlink()
    again = start(tmp_path, 0)
    assert again.communicate(timeout=WAIT_S) == ("[0, 1, 2, 3]\n", "")
    assert again.returncode == 0
    assert not (tmp_path / "begun-0").exists(), "what was done is not done again"


def test_a_closed_terminal_ends_it_in_the_same_way(tmp_path: Path) -> None:
    """The sentence has nowhere to go."""
    command = start(tmp_path, 600)
    wait_for(lambda: (tmp_path / "begun-3").exists())
    assert command.stderr is not None
    command.stderr.close()
    os.killpg(command.pid, signal.SIGHUP)
    assert command.wait(WAIT_S) == ExitStatus.STOPPED
    wait_for(lambda: not session(command.pid))


def test_signals_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="inside"), exit_on_signal("unused"):
        raise ValueError("inside")
    assert [signal.getsignal(number) for number in SIGNALS] == before
