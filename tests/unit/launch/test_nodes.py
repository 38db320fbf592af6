"""Nodes without Slurm: what each file says to the others, and when a node starts, waits and ends, by a clock of theirs.

`tests/end_to_end/test_nodes.py` has real ones.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.attempts import Attempt
from launch.nodes import ranks, starts, supervise
from launch.nodes.starts import NodeStart, Starts
from launch.policy import Decision, decide
from pretrain.errors import ConfigError, RunError

NOW = 5000.0


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    monkeypatch.setattr(starts, "time", SimpleNamespace(time=lambda: NOW))
    return Starts(tmp_path, "a")


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"job": "b", "number": 1, "address": "h", "port": 1}'])
def test_what_is_not_of_this_job_is_not_there(files: Starts, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "start.json").write_text(text)
        (tmp_path / "node-1.json").write_text(text)
    assert (files.newest(), files.ending(), files.joined(1), files.missing(2, 0)) == (None, None, 0, [1])


def test_starts_have_numbers_and_an_end(files: Starts) -> None:
    assert files.publish(1, "h", 7) == files.newest() == NodeStart(job="a", number=1, address="h", port=7)
    assert files.ending() is None
    files.end(2)
    assert (files.ending(), files.newest()) == (2, NodeStart(job="a", number=1, address="h", port=7, ended=2))
    files.join(1, 4)
    assert (files.joined(1), files.joined(2)) == (4, 0)


def test_a_job_that_ends_before_its_first_start_says_so(files: Starts) -> None:
    files.end(1)
    assert files.ending() == 1


@pytest.mark.parametrize(
    ("note", "waits"),
    [
        ({"after": 2, "time": NOW}, True),
        ({"after": 3, "time": NOW}, True),
        ({"after": 1, "time": NOW}, False),  # it is in an earlier start still
        ({"after": 2, "time": None}, False),  # it has joined
        ({"after": 2}, False),
        ({"time": NOW}, False),
        ({"after": 2, "time": NOW - 60}, True),
        ({"after": 2, "time": NOW - 61}, False),  # it is gone
        ({"after": 2, "time": NOW + 60}, True),  # by a clock of its own
        ({"after": 2, "time": NOW + 61}, False),
        ({"after": 2, "time": NOW, "job": "b"}, False),
    ],
)
def test_nodes_are_missing_unless_they_wait_for_the_next_start(
    files: Starts, tmp_path: Path, note: dict[str, object], waits: bool
) -> None:
    (tmp_path / "node-2.json").write_text(json.dumps({"job": "a", **note}))
    files.wait(1, 2)
    assert files.missing(3, 2) == ([] if waits else [2])


class Clock:
    """Time that passes while a node sleeps, and what happens then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.at, self.stop = 1000.0, dict[float, Callable[[], Any]](), SimpleNamespace(requested=False)
        monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1200, "it waits for ever"
        self.at.pop(self.now - 1000, lambda: None)()

    def request(self) -> None:
        self.stop.requested = True

    def lead(self, files: Starts) -> NodeStart | int:
        return ranks._lead(files, argparse.Namespace(nodes=2, address="h", port=7), self.stop)  # type: ignore[arg-type]

    def follow(self, files: Starts) -> NodeStart | int:
        return ranks._follow(files, 1, self.stop)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("before", [0, 3])
def test_the_first_node_waits_for_the_others(
    files: Starts, clock: Clock, before: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if before:
        files.publish(before, "old", 1)
    clock.at = {100.0: lambda: files.wait(1, before)}
    assert clock.lead(files) == NodeStart(job="a", number=before + 1, address="h", port=7) == files.newest()
    assert clock.now == 1100
    assert capsys.readouterr().err == "launch: waiting for nodes 1 of 2\n" * 2, "once a minute"


def test_asked_to_stop_the_first_node_starts_nothing(files: Starts, clock: Clock) -> None:
    clock.at = {5.0: clock.request}
    assert clock.lead(files) == 75
    assert files.newest() is None


def test_a_node_joins_the_next_start_and_none_that_it_has_joined_before(files: Starts, clock: Clock) -> None:
    files.publish(3, "old", 1)
    files.join(1, 3)
    waited: list[list[int]] = []
    clock.at = {5.0: lambda: waited.append(files.missing(2, 3)), 20.0: lambda: files.publish(4, "h", 7)}
    assert clock.follow(files) == files.newest()
    assert waited == [[]]
    assert clock.now == 1020
    assert (files.joined(1), files.missing(2, 3)) == (4, [1]), "it waits no more"


def test_a_node_notes_every_few_seconds_that_it_waits(
    files: Starts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[float, int, int]] = []
    monkeypatch.setattr(files, "wait", lambda index, after: noted.append((clock.now, index, after)))
    clock.at = {20.0: clock.request}
    assert clock.follow(files) == 75
    assert noted == [(1000 + second, 1, 0) for second in (0, 6, 12, 18)]


@pytest.mark.parametrize("status", [0, 1])
def test_a_node_ends_as_the_first_did(files: Starts, clock: Clock, status: int) -> None:
    files.publish(4, "h", 7)
    files.end(status)  # before this node saw the start
    assert clock.follow(files) == status


def ended(*statuses: int) -> list[Attempt]:
    return [Attempt(began="a", ended="b", status=status) for status in statuses]


@pytest.mark.parametrize(
    ("statuses", "first_ended", "then", "status"),
    [
        ((75,), None, "stopped", 0),
        ((75,), 0, "stopped", 0),
        ((1, 0), 0, "over", 0),
        ((0,), 1, "over", 1),
        ((1, 1, 1, 1, 1), None, "again", 0),
        ((2,), None, "again", 0),
        ((0,), None, "again", 0),
        ((75, 1), None, "again", 0),
    ],
)
def test_other_nodes_do_what_the_first_decides(
    files: Starts, statuses: tuple[int, ...], first_ended: int | None, then: str, status: int
) -> None:
    if first_ended is not None:
        files.end(first_ended)
    decision = supervise._as_node_0_decides(files)(ended(*statuses), 0)
    assert (decision.next, decision.status) == (then, status)


class _Supervises:
    """In place of a supervisor: ends as it is told to."""

    ends: int | Exception = 0
    made: "_Supervises"

    def __init__(self, placement: Any, directory: Path, run_dir: Path, restarts: int, *_: object) -> None:
        self.placement, self.directory, self.run_dir, self.restarts = placement, directory, run_dir, restarts
        self.policy: Callable[[Sequence[Attempt], int], Decision] = decide
        _Supervises.made = self

    def run(self, command: list[str]) -> int:
        self.command = command
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends


@pytest.mark.parametrize(
    ("index", "ends", "status", "recorded"),
    [
        (0, 0, 0, 0),
        (0, 1, 1, 1),
        (0, 75, 75, None),  # another start follows
        (1, 0, 0, None),
        (0, ConfigError("no"), 2, None),
        (0, RunError("no"), 1, None),
        (0, OSError(28, "No space left on device"), 1, None),
    ],
)
def test_the_first_node_records_how_the_job_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    index: int,
    ends: int | Exception,
    status: int,
    recorded: int | None,
) -> None:
    monkeypatch.setattr(supervise, "Supervisor", _Supervises)
    monkeypatch.setattr(_Supervises, "ends", ends)
    words = ["--run", str(tmp_path), "--job", "a", "--index", str(index), "--nodes", "2", "--ranks", "8"]
    assert supervise.main([*words, "--address", "h", "--restarts", "7", "--", "train", "c"]) == status
    launch = tmp_path / "launch"
    assert Starts(launch / "nodes", "a").ending() == recorded
    made = _Supervises.made
    assert (made.directory, made.run_dir) == (launch / "nodes/node-1" if index else launch, tmp_path)
    assert (made.restarts, made.command, made.policy is decide) == (7, ["train", "c"], not index)
    program = made.placement.command(made.command)
    given = dict(zip(program[3:-3:2], program[4:-3:2], strict=True))
    assert given == {
        "--directory": str(launch / "nodes"), "--job": "a", "--address": "h", "--index": str(index), "--nodes": "2",
        "--ranks": "8", "--port": "29400",
    }  # fmt: skip
    assert program[-3:] == ["--", "train", "c"]
