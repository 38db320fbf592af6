"""What others see and do of a launched run, in cases where each condition decides alone; what Slurm says are values.

`test_status.py` and `test_slurm.py` have programs of Slurm's names.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch import attempts, cancel, presence, run_progress, status
from launch.slurm import client, queueing
from launch.slurm.script import BatchJob, TaskArray
from launch.slurm.site import Site
from launch.tasks import ArrayTask
from pretrain.errors import ConfigError, RunError

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER, LATER = "2025-12-31T23:59:59+00:00", "2026-01-01T00:00:00+00:00"


def note(run: Path, *events: dict[str, object]) -> None:
    (run / "events.jsonl").write_text("".join(f"{json.dumps({'time': LATER, **event})}\n" for event in events))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], None),
        ([{"event": "failed", "reason": "a", "time": EARLIER}], None),
        ([{"event": "failed", "reason": "a"}], "a"),
        ([{"event": "failed", "reason": "a"}, {"event": "stopped", "reason": "b"}], "a"),
        ([{"event": "failed", "reason": "a"}, {"event": "failed"}], "a"),
        ([{"event": "failed", "reason": "a"}, {"event": "failed", "reason": "b"}], "b"),
        ([{"event": "hung"}], "HungError: the run hangs"),
        ([{"event": "hung", "time": EARLIER}, {"event": "failed", "reason": "a"}], "a"),
        ([{"event": "failed", "reason": "a"}, {"event": "hung"}], "HungError: a"),
    ],
)
def test_the_reason_of_a_failure_is_its_own(
    tmp_path: Path, events: list[dict[str, object]], reason: str | None
) -> None:
    note(tmp_path, *events)
    assert run_progress.failure(tmp_path, BEGAN) == reason


def test_a_hang_is_as_old_as_its_first_event(tmp_path: Path) -> None:
    later = "2026-01-01T00:00:09+00:00"
    note(
        tmp_path,
        {"event": "hung", "time": EARLIER},
        {"event": "failed"},
        {"event": "hung"},
        {"event": "hung", "time": later},
    )
    assert run_progress.found_to_hang(tmp_path, BEGAN) == BEGAN
    note(tmp_path, {"event": "failed"})
    assert run_progress.found_to_hang(tmp_path, BEGAN) is None


@pytest.mark.parametrize(
    ("events", "nodes"),
    [
        ([{"event": "preflight", "refused": ["n1"], "time": EARLIER}], ()),
        ([{"event": "preflight", "refused": ["n1"]}, {"event": "preflight", "refused": ["n2", "n3"]}], ("n2", "n3")),
        ([{"event": "preflight", "refused": ["n1"]}, {"event": "preflight", "refused": []}], ()),
        ([{"event": "preflight", "refused": ["n1"]}, {"event": "warning", "refused": ["n2"]}], ("n1",)),
        ([{"event": "preflight", "refused": ["n1"]}, {"event": "miscomputed", "hosts": ["n2"]}], ("n1", "n2")),
        ([{"event": "miscomputed", "hosts": ["n1"]}, {"event": "miscomputed", "hosts": ["n2"]}], ("n2",)),
        ([{"event": "miscomputed", "hosts": ["n1"]}, {"event": "warning", "hosts": ["n2"]}], ("n1",)),
        ([{"event": "miscomputed", "hosts": ["n1"]}, {"event": "miscomputed", "hosts": ["n1", "n2"]}], ()),
        ([{"event": "miscomputed", "hosts": []}], ()),
        ([{"event": "miscomputed"}], ()),
        ([{"event": "preflight", "refused": "n1"}, {"event": "miscomputed", "hosts": "n"}], ()),
    ],
)
def test_bad_nodes_are_those_that_are_certain(
    tmp_path: Path, events: list[dict[str, object]], nodes: tuple[str, ...]
) -> None:
    note(tmp_path, *events)
    assert run_progress.bad_nodes(tmp_path, BEGAN) == nodes


@pytest.mark.parametrize(
    ("change", "command", "is_here"),
    [
        ({}, b"python\0-m\0pretrain\0launch\0local", True),
        ({"host": "elsewhere"}, b"python\0launch", False),
        ({"job": "17"}, b"python\0launch", False),  # which Slurm cancels
        ({}, b"python\0train", False),  # another process has its number now
        ({}, None, False),
        ({"pid": "x"}, b"python\0launch", False),
    ],
)
def test_a_supervisor_is_here_while_its_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], command: bytes | None, is_here: bool
) -> None:
    presence.write(tmp_path, None)
    path = tmp_path / "supervisor.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    if command is not None:
        (tmp_path / "cmdline").write_bytes(command)
    monkeypatch.setattr(presence, "Path", lambda text: tmp_path / Path(text).name)
    assert presence.here(tmp_path) == (os.getpid() if is_here else None)
    assert presence.here(tmp_path / "none") is None


def queue(directory: Path, *names: str) -> None:
    """Jobs 1, 2, ...: of the run itself, whose records are in `directory`, where the name is empty."""
    for number, name in enumerate(names, 1):
        queued = queueing.Queued(str(number), name or "big", "log", str(directory / name))
        with (directory / "jobs.jsonl").open("a") as file:
            file.write(json.dumps({"time": "", **vars(queued)}) + "\n")


@pytest.mark.parametrize(
    ("states", "state", "why"),
    [
        (("RUNNING", "PENDING", "PENDING"), "waiting", "Dependency"),
        (("COMPLETED", "RUNNING", "PENDING"), "running", None),  # not that which waits for it
        (("COMPLETED", "COMPLETING", "PENDING"), "running", None),
        (("COMPLETED", "CONFIGURING", "PENDING"), "waiting", "Dependency"),
        (("COMPLETED", "COMPLETED", "RUNNING"), None, None),
        (("COMPLETED", None, "RUNNING"), None, None),
    ],
)
def test_the_state_of_a_run_is_that_of_its_own_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: Sequence[str | None], state: str | None, why: str | None
) -> None:
    queue(tmp_path, "big-before", "", "big-after")
    facts = [{"JobState": one, "Reason": "Dependency", "NodeList": "(null)"} if one else {} for one in states]
    monkeypatch.setattr(client, "job_facts", lambda number: facts[int(number) - 1])
    jobs, *found = status._queue_state(tmp_path)
    assert found == [state, why]
    names = ("big-before", "big", "big-after")
    assert list(jobs) == [
        f"{n} ({name}): {one}" for n, (name, one) in enumerate(zip(names, states, strict=True), 1) if one
    ]
    assert status._records(tmp_path) == tmp_path


def test_a_build_in_one_job_has_records_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status._records(tmp_path) == tmp_path
    queue(tmp_path, "build-a", "build-a")
    states = ["COMPLETED", "RUNNING"]
    monkeypatch.setattr(client, "job_facts", lambda number: {"JobState": states[int(number) - 1]})
    assert status._records(tmp_path) == tmp_path / "build-a"
    assert status._queue_state(tmp_path)[1:] == ("running", None)


def test_without_slurm_only_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(number: str) -> dict[str, str]:
        raise ConfigError("scontrol is not installed here")

    queue(tmp_path, "")
    monkeypatch.setattr(client, "job_facts", absent)
    assert status._queue_state(tmp_path) == ((), None, None)


def test_an_array_that_is_launched_again_is_not_cancelled_any_more(tmp_path: Path) -> None:
    """Nor are its tasks, each of which has a mark of its own: one that saved would not be queued again."""
    array = BatchJob(
        name="a", what="x", directory=tmp_path, work_dir=tmp_path, command=(), run_dir=None, python="python",
        site=Site(), nodes=1, ranks_join=False, restarts=1, array=TaskArray((ArrayTask(("eval", "r"), None),), 1),
    )  # fmt: skip
    for folder in (tmp_path, tmp_path / "task-0", tmp_path / "task-1"):
        attempts.forbid(folder)
    queueing.write(array)
    assert not list(tmp_path.rglob("cancelled"))


@pytest.mark.parametrize(
    ("state", "now", "sent"),
    [
        ("RUNNING", False, "TERM"),
        ("RUNNING", True, None),
        ("PENDING", False, None),
        ("SUSPENDED", False, None),
        ("REQUEUE_HOLD", False, None),
        ("COMPLETING", True, "nothing"),
        ("COMPLETED", True, "nothing"),
    ],
)
def test_a_job_is_cancelled_as_its_state_allows(
    monkeypatch: pytest.MonkeyPatch, state: str, now: bool, sent: str | None
) -> None:
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(client, "task_facts", lambda number: [{"JobId": number, "JobState": state}])
    monkeypatch.setattr(client, "cancel", lambda name, number: asked.append((name, number)))
    said = list(cancel._end_job(queueing.Queued("17", "big", "log", "records"), now))
    assert asked == ([] if sent == "nothing" else [("17", sent)])
    assert said == [f"job 17 (big) {'saves and ends' if sent == 'TERM' else 'is cancelled'}"] * len(asked)
    monkeypatch.setattr(client, "cancel", lambda name, number: "not yours")
    if asked:
        with pytest.raises(ConfigError, match="job 17 cannot be cancelled: not yours"):
            list(cancel._end_job(queueing.Queued("17", "big", "log", "records"), now))


@pytest.mark.parametrize(("now", "sent"), [(False, [signal.SIGTERM]), (True, [signal.SIGINT, signal.SIGINT])])
def test_a_supervisor_here_is_asked_once_or_interrupted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool, sent: list[int]
) -> None:
    asked: list[int] = []
    pauses: list[float] = []
    monkeypatch.setattr(presence, "here", lambda directory: 7)
    monkeypatch.setattr(os, "kill", lambda pid, number: asked.append(number))
    monkeypatch.setattr(cancel, "time", SimpleNamespace(sleep=lambda seconds: pauses.append(len(asked))))
    (tmp_path / "launch").mkdir()
    (said,) = cancel.cancel(tmp_path, now)
    assert said == "the supervisor here (process 7) " + ("is ended" if now else "has its ranks save and ends")
    assert (asked, pauses) == (sent, [1] * now), "it has time to see the first"
    assert attempts.is_forbidden(tmp_path / "launch")


class Programs:
    """Slurm's programs, which answer in turn, on a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str, str] | Exception) -> None:
        self.asked, self.now, self.timeout_s, self._answers = list[list[str]](), 0.0, 0.0, list(answers)
        monkeypatch.setattr(subprocess, "run", self.run)
        monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, words: list[str], timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(words)
        self.timeout_s = timeout
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(words, *answer)


AWAY = (1, "", "scontrol: error: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize(("within", "seconds"), [(False, 62.0), (True, 902.0)])
def test_a_controller_is_awaited_longer_within_a_job(
    monkeypatch: pytest.MonkeyPatch, within: bool, seconds: float
) -> None:
    programs = Programs(monkeypatch, AWAY)
    if within:
        monkeypatch.setenv("SLURM_JOB_ID", "17")
    with pytest.raises(RunError, match="Slurm does not answer: Unable to contact slurm controller"):
        client.job_facts("17")
    assert (programs.now, programs.timeout_s) == (seconds, seconds - 2)


@pytest.mark.parametrize(
    ("answer", "times", "now"),
    [
        (AWAY, 2, 2.0),
        ((1, "", "Socket timed out on send/recv operation"), 2, 2.0),
        ((1, "", "Invalid job id specified"), 1, 0.0),
        ((0, "JobId=17", "Socket timed out, and tried again"), 1, 0.0),  # it has taken effect
    ],
)
def test_a_command_is_tried_again_only_while_the_controller_is_away(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], times: int, now: float
) -> None:
    programs = Programs(monkeypatch, answer, (0, "JobId=17", ""))
    client.job_facts("17")
    assert (len(programs.asked), programs.now) == (times, now)


def test_a_submission_is_not_tried_again_as_it_could_take_effect_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs(monkeypatch, AWAY)
    with pytest.raises(ConfigError, match="Slurm rejected /a: Unable to contact"):
        client.submit("/a", task="3")
    assert programs.asked == [["sbatch", "--parsable", "--array=3", "/a"]]


def test_a_program_that_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    Programs(monkeypatch, subprocess.TimeoutExpired("scontrol", 60))
    with pytest.raises(RunError, match="scontrol took more than 60 s"):
        client.job_facts("17")


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([(0, "", "")], None),
        ([(1, "", "slurm_requeue error: Job is pending"), (0, "JobId=17 JobState=PENDING", "")], None),
        ([(1, "", "no"), (0, "JobId=17 JobState=REQUEUE_HOLD", "")], None),
        (
            [(1, "", "scontrol: error: disabled for job 17"), (0, "JobId=17 JobState=RUNNING", "")],
            "disabled for job 17",
        ),
        ([(1, "", "x: last\ny: error: of two"), (1, "", "Invalid job id specified")], "of two"),
        ([(3, "", ""), (0, "JobId=17 JobState=RUNNING", "")], "status 3"),
    ],
)
def test_a_job_that_is_queued_already_is_queued_again(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, str, str]], refused: str | None
) -> None:
    Programs(monkeypatch, *answers)
    assert client.requeue("17") == refused


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        ((1, "", "slurm_load_jobs error: Invalid job id specified"), []),
        ((0, "JobId=17 A=x\n\nJobId=18 A=\n", ""), [{"JobId": "17", "A": "x"}, {"JobId": "18", "A": ""}]),
    ],
)
def test_each_line_has_the_facts_of_a_task(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], facts: list[dict[str, str]]
) -> None:
    Programs(monkeypatch, answer)
    assert client.task_facts("17") == facts


def test_another_error_is_not_a_job_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    Programs(monkeypatch, (1, "", "slurm_load_jobs error: Access denied"))
    with pytest.raises(RunError, match="Access denied"):
        client.task_facts("17")


@pytest.mark.parametrize(
    ("state", "is_up"),
    [
        *((state, True) for state in ("allocated", "mixed", "idle", "completing", "idle+cloud", "reserved")),
        *((state, False) for state in ("down", "DRAINING", "drained", "failing", "mixed*", "powering_down", "reboot^")),
        *((state, False) for state in ("maint", "not_responding", "no_respond")),
    ],
)  # fmt: skip
def test_nodes_are_up_by_their_state(monkeypatch: pytest.MonkeyPatch, state: str, is_up: bool) -> None:
    Programs(monkeypatch, (0, f"n0 {state}\nn1\n\nn2 idle\n", ""))
    assert client.usable(["n2", "n1", "n0", "n3"]) == (["n2", "n0"] if is_up else ["n2"])


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"JobId": "17"}, "17"),
        ({"JobId": "18", "ArrayJobId": "17", "ArrayTaskId": "2"}, "17_2"),
        ({"JobId": "17", "ArrayJobId": "17", "ArrayTaskId": "3-5,8%2"}, "17_[3-5,8]"),
        ({"JobId": "17", "ArrayJobId": "17", "ArrayTaskId": "3%2"}, "17_3"),
    ],
)
def test_tasks_have_the_names_that_slurm_takes(facts: dict[str, str], name: str) -> None:
    assert client.name_of(facts) == name


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, "17"),
        ({"SLURM_ARRAY_JOB_ID": "9"}, "17"),
        ({"SLURM_ARRAY_TASK_ID": "3"}, "17"),
        ({"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}, "9_3"),
    ],
)
def test_a_task_of_an_array_has_both_numbers(environment: dict[str, str], job: str) -> None:
    assert client.this_job({"SLURM_JOB_ID": "17", **environment}) == job


@pytest.mark.parametrize(
    ("printed", "steps", "scancel"),
    [
        ((0, "17.0\n17.3\n17.batch\n17.extern\n17.interactive\n170.0\n", ""), ["17.0", "17.3"], ["17.0", "17.3"]),
        ((0, "17.batch\n", ""), [], None),  # nothing is sent to the script
        ((1, "17.0", "slurm_load_jobs error: Invalid job id"), [], None),
    ],
)
def test_signals_go_to_steps_of_the_job_alone(
    monkeypatch: pytest.MonkeyPatch, printed: tuple[int, str, str], steps: list[str], scancel: list[str] | None
) -> None:
    programs = Programs(monkeypatch, printed)
    assert client.steps("17") == steps
    client.signal_steps("17", "USR1")
    assert programs.asked[2:] == ([] if scancel is None else [["scancel", "--quiet", "--signal=USR1", *scancel]])
