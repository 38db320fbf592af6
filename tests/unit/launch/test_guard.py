"""The process that looks after a supervisor: it comes back when it is killed, and goes on when it is stopped."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import guard as module
from launch.guard import guard
from pretrain.process.signals import SIGNALS, unblock


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def lives(path: Path) -> int:
    """How often the work has begun, this time included; it leaves its process's number."""
    begun = len(path.read_text().split()) if path.exists() else 0
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return begun + 1


def beside(path: Path, does: Callable[[int], None]) -> threading.Thread:
    """Once the work is there, `does` something to its process."""

    def wait() -> None:
        # The guard blocks signals and awaits them: this thread must not take one.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while not path.exists() or not path.read_text().endswith("\n"):
            time.sleep(0.01)
        does(int(path.read_text().split()[-1]))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def ask(number: int) -> None:
    """Sends a signal to the thread that guards: another thread of the test runner would take one that is sent to the
    process while the guard does not wait for it."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


def test_what_ends_by_itself_is_over() -> None:
    said: list[str] = []
    assert [guard(lambda: 0, said.append), guard(lambda: 75, said.append), said] == [0, 75, []]


def test_an_error_is_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise ValueError("no")

    assert guard(work, print) == 1
    assert "ValueError: no" in capfd.readouterr().err


def test_what_is_killed_begins_again(tmp_path: Path) -> None:
    said: list[str] = []

    def work() -> int:
        if lives(tmp_path / "lives") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert guard(work, said.append) == 0
    assert len((tmp_path / "lives").read_text().split()) == 2
    assert said == ["the supervisor was ended by signal 9: it restarts"]


def test_what_is_killed_at_once_each_time_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)

    def work() -> int:
        lives(tmp_path / "lives")
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    said: list[str] = []
    assert guard(work, said.append) == 137
    assert len((tmp_path / "lives").read_text().split()) == 5
    assert "5 times in a row" in said[-1]


@pytest.mark.parametrize(
    ("lived_s", "status"),
    [
        ([1.0] * 4, 0),
        ([1.0] * 5, 137),
        ([59.9] * 5, 137),
        ([60.0] * 9, 0),
        ([1.0] * 4 + [60.0] + [1.0] * 4, 0),
        ([1.0] * 4 + [60.0] + [1.0] * 5, 137),
    ],
)
def test_deaths_long_after_a_start_are_none_in_a_row(
    monkeypatch: pytest.MonkeyPatch, lived_s: list[float], status: int
) -> None:
    """Supervisors that live so long and are killed, on a clock of their own; the next one ends by itself."""
    clock, lives, said = [0.0], iter(lived_s), list[str]()

    def ended(pid: int, say: object) -> int:
        clock[0] += (lived := next(lives, 0.0))
        return -signal.SIGKILL if lived else 0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: None))
    monkeypatch.setattr(module, "_fork", lambda work: 0)
    monkeypatch.setattr(module, "_status", ended)
    monkeypatch.setattr(signal, "sigtimedwait", lambda *_: SimpleNamespace(si_signo=signal.SIGCHLD))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("the end of a process is no signal for it"))
    assert guard(lambda: 0, said.append) == status
    assert next(lives, None) is None
    assert len(said) == len(lived_s)
    assert said[-1].endswith("5 times in a row soon after its start" if status else "signal 9: it restarts")


def test_what_is_stopped_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    said: list[str] = []

    def work() -> int:
        lives(tmp_path / "lives")
        os.kill(os.getpid(), signal.SIGSTOP)
        return 7

    assert guard(work, said.append) == 7
    assert slept == [10.0]
    assert said == ["the supervisor was stopped by signal 19: it resumes in 10 s"]


def test_what_it_was_not_told_of_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread with SIGCHLD unblocked, such as that of the test runner, may take it between two waits."""
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setattr(module, "_AWAITED", SIGNALS)
    assert guard(lambda: 7, print) == 7


def _until_asked() -> int:
    asked: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: asked.append(number))
    unblock()
    while not asked:
        time.sleep(0.01)
    return 75 if len(asked) == 1 else 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_goes_on_to_it_also_before_it_can_take_one(tmp_path: Path, number: int) -> None:
    def work() -> int:
        lives(tmp_path / "lives")
        time.sleep(0.3)
        return _until_asked()

    thread = beside(tmp_path / "lives", lambda _: ask(number))
    assert guard(work, print) == 75
    thread.join()


def test_what_was_asked_of_one_that_was_killed_is_asked_of_the_next(tmp_path: Path) -> None:
    def work() -> int:
        if lives(tmp_path / "lives") == 1:
            time.sleep(60)
        return _until_asked()

    def ask_and_kill(pid: int) -> None:
        ask(signal.SIGUSR1)
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)

    thread = beside(tmp_path / "lives", ask_and_kill)
    assert guard(work, print) == 75
    thread.join()


def test_it_ends_with_the_guard(tmp_path: Path) -> None:
    def work() -> int:
        lives(tmp_path / "lives")
        _until_asked()
        (tmp_path / "saved").touch()
        return 75

    pid = os.fork()
    if pid == 0:
        guard(work, print)
        os._exit(0)

    def kill_the_guard(_: int) -> None:
        time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)

    beside(tmp_path / "lives", kill_the_guard).join()
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 10
    while not (tmp_path / "saved").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
