"""What the supervisor does, in cases where each condition decides alone, with a clock and a command that is no process.

`test_supervisor.py` has real ones.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch import attempts, supervisor
from launch.attempts import Attempt
from launch.local_placement import LocalPlacement
from launch.policy import Decision
from launch.supervisor import Supervisor
from pretrain.process.signals import SIGNALS
from pretrain.run_dir import heartbeat
from pretrain.run_dir.heartbeat import Heartbeat

BEGAN, NOW, SILENCE_S = 1000.0, 2000.0, 100.0


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class World(LocalPlacement):
    """A machine with a clock, on which each command ends after `lasts_s` with `status`, or 1.5 s after it is killed.
    Signals arrive at their times."""

    def __init__(self, lasts_s: float, status: int, signals: Sequence[tuple[float, int]] = ()) -> None:
        self.now, self.starts, self.asked, self.killed = 0.0, 0, list[tuple[float, int]](), list[float]()
        self._lasts_s, self._status, self._signals, self._began = lasts_s, status, list(signals), 0.0
        self.done: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep, time=lambda: 0.0)  # no beat is old
        monkeypatch.setattr(supervisor, "time", clock)
        monkeypatch.setattr(supervisor, "subprocess", SimpleNamespace(Popen=self.start))
        monkeypatch.setattr(os, "killpg", lambda pid, number: self.killed.append(self.now))

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 3)
        while self._signals and self._signals[0][0] <= self.now:
            signal.raise_signal(self._signals.pop(0)[1])

    def start(self, *_: object, **__: object) -> SimpleNamespace:
        self.starts, self._began = self.starts + 1, self.now
        return SimpleNamespace(pid=7, poll=self.poll)

    def poll(self) -> int | None:
        if self.killed and self.now > self.killed[0] + 1.5:
            return -signal.SIGKILL
        return self._status if self.now >= self._began + self._lasts_s else None

    def ask_to_stop(self, process: Any, number: int) -> None:
        self.asked.append((self.now, number))

    def clear(self) -> None:
        self.done.append("clear")

    def exclude_nodes(self, nodes: Sequence[str]) -> str:
        self.done.append(f"exclude {','.join(nodes)}")
        return "excluded"

    def requeue(self) -> str:
        self.done.append("requeue")
        return "requeued"

    def end_cancelled(self) -> None:
        self.done.append("end")


def watch(world: World, run: Path | None, directory: Path, restarts: int = 0) -> tuple[Supervisor, list[str]]:
    said: list[str] = []
    return Supervisor(world, directory, run, restarts, SILENCE_S, said.append), said


def note(run: Path, event: str, time: float = 4e9, **facts: object) -> None:
    line = {"time": datetime.fromtimestamp(time, UTC).isoformat(), "event": event, **facts}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    ("beat_s", "hung_s", "said"),
    [
        (None, None, None),
        (BEGAN - 1, None, None),  # of the attempt before: this one is still starting
        (BEGAN, None, None),
        (BEGAN + 1, None, "no heartbeat for 100 s"),
        (NOW - SILENCE_S - 1, None, "no heartbeat for 100 s"),
        (NOW - SILENCE_S, None, None),
        (NOW, BEGAN - 1, None),
        (NOW, NOW - 11, "the run hangs"),
        (NOW, NOW - 10, None),  # its ranks leave by themselves
        (NOW, NOW, None),
        (BEGAN - 1, BEGAN + 1, "the run hangs"),
        (None, BEGAN + 1, "the run hangs"),
        (BEGAN + 1, BEGAN + 1, "no heartbeat for 100 s"),
    ],
)
def test_an_attempt_hangs_by_its_own_heartbeat_and_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, beat_s: float | None, hung_s: float | None, said: str | None
) -> None:
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(time=lambda: NOW))
    began = datetime.fromtimestamp(BEGAN, UTC)
    if beat_s is not None:
        heartbeat.write(tmp_path, Heartbeat(beat_s, 3, "step 3", "h", 1))
    if hung_s is not None:
        note(tmp_path, "hung", hung_s)
    note(tmp_path, "warning", BEGAN + 1)
    assert watch(World(0, 0), tmp_path, tmp_path)[0]._hang(began) == said
    assert watch(World(0, 0), None, tmp_path)[0]._hang(began) is None


@pytest.mark.parametrize(
    ("signals", "asked", "killed_s"),
    [
        ([(3.0, signal.SIGTERM)], [(3.0, signal.SIGTERM), (13.0, signal.SIGTERM), (23.0, signal.SIGTERM)], None),
        ([(3.0, signal.SIGINT)], [(3.0, signal.SIGINT)], None),  # a second one would end ranks without a save
        ([(3.0, signal.SIGINT), (5.0, signal.SIGINT)], [(3.0, signal.SIGINT)], 5.0),
        ([(3.0, signal.SIGINT), (5.0, signal.SIGINT), (5.0, signal.SIGHUP)], [(3.0, signal.SIGINT)], 5.0),
        ([(3.0, signal.SIGINT), (5.0, signal.SIGTERM)], [(3.0, signal.SIGINT)], None),
        ([(3.0, signal.SIGTERM), (5.0, signal.SIGINT)], [(3.0, signal.SIGTERM), (13.0, signal.SIGINT)], None),
        ([(3.0, signal.SIGTERM), (5.0, signal.SIGTERM)], [(at, signal.SIGTERM) for at in (3.0, 13.0, 23.0)], None),
    ],
)
def test_requests_to_stop_are_repeated_and_only_a_second_interrupt_kills(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    signals: list[tuple[float, int]],
    asked: list[tuple[float, int]],
    killed_s: float | None,
) -> None:
    world = World(30.0, 75, signals)
    world.install(monkeypatch)
    watched, _ = watch(world, None, tmp_path, restarts=9)
    assert watched.run(["x"]) == 75
    assert world.asked == asked
    assert world.killed[:1] == ([] if killed_s is None else [killed_s])
    assert world.done == ["clear", "requeue"]


@pytest.mark.parametrize(
    ("status", "hangs", "reported", "reason"),
    [
        (1, False, None, None),
        (1, False, "RunError: no", "RunError: no"),
        (75, False, "RunError: no", None),  # it has saved all the same
        (1, True, None, "HungError: it is silent"),
        (1, True, "RunError: no", "RunError: no"),
    ],
)
def test_the_reason_is_what_the_attempt_reported_or_that_it_hung(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    status: int,
    hangs: bool,
    reported: str | None,
    reason: str | None,
) -> None:
    world = World(30.0, status)
    world.install(monkeypatch)
    looks: list[float] = []

    def look(watched: Supervisor, began: datetime) -> str | None:
        looks.append(world.now)
        return "it is silent" if hangs and len(looks) > 2 else None

    monkeypatch.setattr(Supervisor, "_hang", look)
    if reported is not None:
        note(tmp_path, "failed", reason=reported)
    watched, said = watch(world, tmp_path, tmp_path)
    watched.run(["x"])
    (attempt,) = attempts.read(tmp_path)
    assert (attempt.reason, attempt.status) == (reason, 137 if hangs else status)
    assert looks[:3] == [0.0, 1.0, 2.0], "once a second"
    assert world.killed == [2.0] * hangs, "once"
    assert (said[0] == "it is silent: its ranks are killed") == hangs


def test_asked_to_stop_before_a_start_it_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ranks of a killed supervisor saved, for minutes."""
    world = World(30.0, 0)
    world.install(monkeypatch)
    monkeypatch.setattr(world, "adopt_orphaned_ranks", lambda say: signal.raise_signal(signal.SIGTERM))
    assert watch(world, None, tmp_path)[0].run(["x"]) == 75
    assert (world.starts, world.done) == (0, ["requeue"])


AGAIN, OVER = Decision("again", "failed; later", pause_s=20.0), Decision("over", "done; all", 0)
STOPPED = Decision("stopped", "saved")


@pytest.mark.parametrize(
    ("decisions", "signals", "status", "done", "seconds"),
    [
        ([OVER], [], 0, ["clear"], 30.0),
        ([OVER], [(3.0, signal.SIGTERM)], 0, ["clear"], 30.0),  # it came to its end all the same
        ([Decision("over", "no", 2)], [], 2, ["clear"], 30.0),
        ([STOPPED], [], 75, ["clear", "requeue"], 30.0),
        ([AGAIN, OVER], [], 0, ["clear", "exclude n1", "clear"], 80.0),
        ([AGAIN], [(3.0, signal.SIGTERM)], 75, ["clear", "requeue"], 30.0),
        ([AGAIN], [(33.0, signal.SIGTERM)], 75, ["clear", "exclude n1", "requeue"], 33.0),
    ],
)
def test_decisions_are_carried_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    decisions: list[Decision],
    signals: list[tuple[float, int]],
    status: int,
    done: list[str],
    seconds: float,
) -> None:
    """Nodes are excluded where another attempt follows, and alone then."""
    world = World(30.0, 1, signals)
    world.install(monkeypatch)
    note(tmp_path, "miscomputed", hosts=["n1"])
    watched, said = watch(world, tmp_path, tmp_path, restarts=7)
    seen: list[tuple[int, int]] = []

    def decide(history: Sequence[Attempt], restarts: int) -> Decision:
        seen.append((len(history), restarts))
        return decisions[len(seen) - 1]

    watched.policy = decide
    assert watched.run(["x"]) == status
    assert (world.done, world.now) == (done, seconds)
    assert seen == [(number, 7) for number in range(1, len(decisions) + 1)]
    assert attempts.last_decision(tmp_path) in said
    if decisions == [AGAIN] and signals[0][0] < 30:
        assert said[0] == "on a request to stop, it failed"
    assert any("n1: failed the preflight tests" in line for line in said) == ("exclude n1" in done)


@pytest.mark.parametrize(
    ("change", "done"), [(attempts.forbid, ["clear", "end"]), (attempts.allow, ["clear", "requeue"])]
)
def test_a_cancelled_run_is_not_queued_again_until_it_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], done: list[str]
) -> None:
    attempts.forbid(tmp_path)
    change(tmp_path)
    world = World(1.0, 75)
    world.install(monkeypatch)
    assert watch(world, None, tmp_path)[0].run(["x"]) == 75
    assert world.done == done


def test_attempts_of_other_versions_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    assert attempts.last_decision(tmp_path) is None
    assert not attempts.exist(tmp_path)
    known = {"began": "a", "ended": "b", "status": 1}
    lines = [{**known, "newer": 1}, *({k: v for k, v in known.items() if k != left_out} for left_out in known)]
    (tmp_path / "attempts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert attempts.read(tmp_path) == [Attempt(began="a", ended="b", status=1)]
    assert attempts.exist(tmp_path)
    assert attempts.last_decision(tmp_path) is None
    attempts.append(tmp_path, Attempt(began="c", ended="d", status=0), "done")
    assert attempts.last_decision(tmp_path) == "done"
