"""The supervisor with commands of a line, which leave behind what a run would."""

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pytest

from launch import attempts, supervisor
from launch.local_placement import LocalPlacement
from launch.supervisor import Supervisor
from pretrain.process.signals import SIGNALS


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def supervise(
    run: Path, script: str, restarts: int = 3, silence_s: float = 100.0, during: Callable[[], None] | None = None
) -> tuple[int, list[str]]:
    """Its status, and what it said. `script` is run by a shell in `run`, and `during` beside it."""
    said: list[str] = []
    watched = Supervisor(LocalPlacement(), run / "launch", run, restarts, silence_s, said.append)
    beside = threading.Thread(target=during or (lambda: None))
    beside.start()
    status = watched.run(["sh", "-c", f"cd {run}; {script}"])
    beside.join()
    return status, said


def step(number: int) -> str:
    return f"echo '{json.dumps({'step': number})}' >> metrics.jsonl; "


def after_start(run: Path, number: int, times: int = 1) -> Callable[[], None]:
    """Sends this process a signal once the command says that it is there."""

    def send() -> None:
        while not (run / "there").exists():
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.3)

    return send


def test_starts_again_until_it_is_done(tmp_path: Path) -> None:
    script = f"{step(7)} mkdir -p checkpoints/step-00000005; test -e second || {{ touch second; kill -9 $$; }}"
    status, said = supervise(tmp_path, script)
    assert status == 0
    assert len(said) == 2
    assert "failed at step 7" in said[0]
    assert "from step 5" in said[0]
    assert said[1] == "done"
    first, second = attempts.read(tmp_path / "launch")
    assert (first.status, first.step, first.saved, first.ending) == (137, 7, 5, "failed")
    assert (second.status, second.ending) == (0, "done")


def test_a_wrong_config_is_not_tried_again(tmp_path: Path) -> None:
    status, _ = supervise(tmp_path, "echo x >> starts; exit 2")
    assert status == 2
    assert (tmp_path / "starts").read_text() == "x\n"


def test_what_fails_in_the_same_words_is_tried_twice(tmp_path: Path) -> None:
    event = {"time": "2999-01-01T00:00:00.000+00:00", "event": "failed", "reason": "RunError: step 8: not finite"}
    status, said = supervise(tmp_path, f"{step(7)} echo '{json.dumps(event)}' >> events.jsonl; exit 1")
    assert status == 1
    assert len(attempts.read(tmp_path / "launch")) == 2
    assert "problem of data or numbers" in said[-1]
    assert "RunError: step 8: not finite" in said[-1]


def test_a_hang_in_the_same_words_is_tried_again(tmp_path: Path) -> None:
    lines = [
        {"time": "2999-01-01T00:00:00.000+00:00", "event": "hung", "step": 8},
        {"time": "2999-01-01T00:00:00.000+00:00", "event": "failed", "reason": "the run hangs at step 8"},
    ]
    told = "".join(f"echo '{json.dumps(line)}' >> events.jsonl; " for line in lines)
    status, said = supervise(tmp_path, f"{step(7)} {told} exit 1", restarts=2)
    assert status == 1
    assert len(attempts.read(tmp_path / "launch")) == 3
    assert "failed 3 times without a new checkpoint" in said[-1]
    assert "HungError: the run hangs at step 8" in said[-1]


def test_failures_of_an_earlier_start_are_not_taken_for_its_own(tmp_path: Path) -> None:
    event = {"time": "2001-01-01T00:00:00.000+00:00", "event": "failed", "reason": "RunError: old"}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    status, said = supervise(tmp_path, "exit 1", restarts=0)
    assert status == 1
    assert "old" not in said[-1]


def test_a_job_that_is_queued_again_goes_on_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalPlacement, "job", "17")
    assert supervise(tmp_path, "exit 1", restarts=0)[0] == 1
    assert supervise(tmp_path, "exit 1", restarts=1)[0] == 1
    assert len(attempts.read(tmp_path / "launch")) == 2


@pytest.mark.parametrize("job", [None, "18"])
def test_what_is_launched_anew_has_a_whole_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str | None
) -> None:
    monkeypatch.setattr(LocalPlacement, "job", job and "17")
    assert supervise(tmp_path, "exit 1", restarts=0)[0] == 1
    monkeypatch.setattr(LocalPlacement, "job", job)
    assert supervise(tmp_path, "exit 1", restarts=1)[0] == 1
    assert len(attempts.read(tmp_path / "launch")) == 3


def test_ranks_that_were_not_there_yet_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_AGAIN_S", 0.3)
    script = "trap '' TERM; touch there; sleep 1; trap 'exit 75' TERM; while true; do sleep 0.05; done"
    status, said = supervise(tmp_path, script, during=after_start(tmp_path, signal.SIGTERM))
    assert status == 75
    assert "stopped after saving" in said[0]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_goes_on_to_the_command_which_saves(tmp_path: Path, number: int) -> None:
    trap = "trap 'exit 75' INT TERM USR1 HUP; touch there; while true; do sleep 0.05; done"
    status, said = supervise(tmp_path, trap, during=after_start(tmp_path, number))
    assert status == 75
    assert "stopped after saving" in said[0]
    assert "run the same command again to resume" in said[1]


def test_a_command_that_was_asked_to_stop_and_fails_is_not_started_again(tmp_path: Path) -> None:
    trap = "trap 'exit 1' TERM; touch there; while true; do sleep 0.05; done"
    status, said = supervise(tmp_path, trap, during=after_start(tmp_path, signal.SIGTERM))
    assert status == 75
    assert len(attempts.read(tmp_path / "launch")) == 1
    assert "on a request to stop, it failed" in said[0]


def test_asked_to_stop_between_two_starts_it_is_to_go_on_later(tmp_path: Path) -> None:
    script = f"test -e there && {{ sleep 1000; }}; {step(7)} touch there; exit 1"
    status, said = supervise(tmp_path, script, during=after_start(tmp_path, signal.SIGUSR1))
    assert status == 75
    assert "run the same command again to resume" in said[-1]


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    trap = "trap '' INT; touch there; while true; do sleep 0.05; done"
    status, _ = supervise(tmp_path, trap, during=after_start(tmp_path, signal.SIGINT, times=2))
    assert status == 75
    assert attempts.read(tmp_path / "launch")[0].status == 137


def test_a_cancelled_run_is_not_asked_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[LocalPlacement] = []
    monkeypatch.setattr(LocalPlacement, "end_cancelled", lambda placement: ended.append(placement))
    attempts.forbid(tmp_path / "launch")
    status, said = supervise(tmp_path, "exit 75")
    assert (status, len(said), len(ended)) == (75, 1, 1)


def test_ranks_that_fell_silent_are_killed(tmp_path: Path) -> None:
    beat = json.dumps(
        {"time": time.time() + 0.5, "step": 3, "activity": "step 3", "host": "h", "pid": 1}
    )  # after the start, and never again
    status, said = supervise(tmp_path, f"echo '{beat}' > heartbeat.json; exec sleep 60", restarts=0, silence_s=1.0)
    assert status == 1
    assert "no heartbeat for 1 s" in said[0]
    assert attempts.read(tmp_path / "launch")[0].reason == "HungError: no heartbeat for 1 s"


def test_ranks_that_found_a_hang_and_do_not_leave_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LEAVE_S", 0.5)
    lines = [
        {"time": datetime.now(UTC).isoformat(), "event": "hung", "step": 8},
        {"time": datetime.now(UTC).isoformat(), "event": "failed", "reason": "the run hangs at step 8: rank 1"},
    ]
    told = "".join(f"echo '{json.dumps(line)}' >> events.jsonl; " for line in lines)
    began = time.monotonic()
    monkeypatch.setattr(supervisor, "datetime", _Earlier)
    status, said = supervise(tmp_path, f"{told} exec sleep 60", restarts=0)
    assert time.monotonic() - began < 20
    assert status == 1
    assert said[0] == "the run hangs: its ranks are killed"
    assert attempts.read(tmp_path / "launch")[0].reason == "HungError: the run hangs at step 8: rank 1"


class _Earlier(datetime):
    """For whom this second has not begun yet: so that lines written by a test are of the attempt."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Earlier":
        return cls.fromtimestamp(time.time() - 1, tz)


def test_a_full_disk_under_its_records_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attempts, "append", full)
    monkeypatch.setattr(supervisor.presence, "write", full)
    status, said = supervise(tmp_path, "test -e second || { touch second; exit 1; }")
    assert status == 0
    assert said[0].startswith(f"warning: {tmp_path}/launch cannot be written (No space left on device)")
    assert said[-1] == "done"


@pytest.mark.parametrize(
    ("event", "nodes"),
    [
        ({"event": "preflight", "nodes": [], "refused": ["n1"]}, ["n1"]),
        ({"event": "preflight", "nodes": [], "refused": []}, []),
        ({"event": "preflight", "nodes": [], "refused": None}, []),
        ({"event": "miscomputed", "step": 4, "ranks": [2, 3], "hosts": ["n1"]}, ["n1"]),
        ({"event": "miscomputed", "step": 4, "ranks": [2, 4], "hosts": ["n1", "n2"]}, []),
    ],
)
def test_nodes_that_tests_refused_or_that_computed_wrong_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: dict[str, object], nodes: list[str]
) -> None:
    left_out: list[list[str]] = []
    monkeypatch.setattr(LocalPlacement, "exclude_nodes", lambda self, nodes: left_out.append(list(nodes)) or "left out")
    line = json.dumps({"time": "2999-01-01T00:00:00.000+00:00", **event})
    script = f"test -e second && exit 0; touch second; echo '{line}' >> events.jsonl; exit 1"
    assert supervise(tmp_path, script)[0] == 0
    assert left_out == ([nodes] if nodes else [])
    assert list(attempts.read(tmp_path / "launch")[0].bad_nodes) == nodes


def test_a_run_that_gives_no_heartbeat_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "heartbeat.json").write_text(json.dumps({"time": time.time() - 1000}))  # of an earlier start
    status, _ = supervise(tmp_path, "sleep 1", silence_s=0.2)
    assert status == 0


def test_the_command_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        supervise(tmp_path, "trap 'touch saved; exit 75' USR1; echo $$ > there; while true; do sleep 0.05; done")
        os._exit(0)
    while not (tmp_path / "there").exists() or not (tmp_path / "there").read_text():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    command = int((tmp_path / "there").read_text())
    while Path(f"/proc/{command}/cmdline").exists() and Path(f"/proc/{command}/cmdline").read_bytes():
        time.sleep(0.01)
    assert (tmp_path / "saved").exists()
