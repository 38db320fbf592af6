"""How a run stands, by its files alone and with what Slurm says, and ending it."""

import json
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launch import attempts, presence, tasks
from launch.attempts import Attempt
from launch.cancel import cancel
from launch.status import status
from pretrain.__main__ import main
from pretrain.config.load import dump
from pretrain.errors import ConfigError
from tests.helpers.tiny import tiny_config


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 100 steps at step 40, without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = tmp_path / "run"
    (found / "launch").mkdir(parents=True)
    (found / "checkpoints" / "step-00000030").mkdir(parents=True)
    (found / "checkpoints" / "step-00000040.tmp").mkdir()
    (found / "config.yaml").write_text(dump(tiny_config()))
    lines = [
        {"step": n, "loss": 5 - n / 100, "step_seconds": 2.0 if n > 1 else 90.0, "tokens_per_second": 10.0}
        for n in range(1, 41)
    ]
    (found / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 41, "lo')
    return found


def event(run: Path, name: str, **facts: Any) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": "2026-01-01T00:00:00.000+00:00", "event": name, **facts}) + "\n")


def beat(run: Path, age_s: float) -> None:
    (run / "heartbeat.json").write_text(
        json.dumps({"time": time.time() - age_s, "step": 41, "activity": "step 41", "host": "h", "pid": 1})
    )


def slurm(run: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> Path:
    """Slurm's programs, which note what they are asked."""
    programs = run.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("scontrol", "scancel"):
        path = programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {run.parent}/calls\necho "{answer}"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    job = {"time": "", "number": "17", "name": "big", "log": "x", "records": str(run / "launch" / "big")}
    (run / "launch" / "jobs.jsonl").write_text(json.dumps(job) + "\n")
    return run.parent / "calls"


def test_a_run_that_lives(run: Path) -> None:
    beat(run, 3.0)
    found = status(run)
    assert (found.state, found.activity, found.step, found.steps, found.saved) == ("running", "step 41", 40, 100, 30)
    assert found.loss == 4.6
    assert found.left_s == 120.0  # 60 steps of the median 2 s
    assert found.heard_s == pytest.approx(3.0, abs=2.0)


def test_a_run_that_fell_silent_is_not_taken_to_be_running(run: Path) -> None:
    beat(run, 3600.0)
    found = status(run)
    assert (found.state, found.left_s, found.activity) == ("unknown", None, None)


@pytest.mark.parametrize("name", ["finished", "stopped", "failed"])
def test_the_last_ending_counts(run: Path, name: str) -> None:
    event(run, "stopped")
    event(run, "resumed")
    event(run, name, reason="why")
    event(run, "warning", text="x")
    assert (status(run).state, status(run).why) == (name, "why")


def test_a_run_that_has_just_ended_has_ended(run: Path) -> None:
    beat(run, 3.0)
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": datetime.now(UTC).isoformat(), "event": "finished"}) + "\n")
    assert status(run).state == "finished"
    beat(run, -1.0)  # of another start, after it
    assert status(run).state == "running"


def test_starts_and_what_was_done_after_the_last(run: Path) -> None:
    attempts.append(run / "launch", Attempt(began="a", ended="b", status=137, step=20, saved=10), "failed; again")
    attempts.append(run / "launch", Attempt(began="c", ended="d", status=75, step=40, saved=40), "stopped after saving")
    found = status(run)
    assert (found.starts, found.failures, found.last) == (2, 1, "stopped after saving")


@pytest.mark.parametrize(("said", "state"), [("PENDING", "waiting"), ("RUNNING", "running")])
def test_slurm_knows_better_than_files(run: Path, monkeypatch: pytest.MonkeyPatch, said: str, state: str) -> None:
    event(run, "stopped")
    slurm(run, monkeypatch, f"JobId=17 JobState={said} Reason=Resources NodeList=n0")
    found = status(run)
    assert found.state == state
    assert found.jobs == (f"17 (big): {said} on n0",)


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run"):
        status(tmp_path / "none")


def test_a_running_job_is_asked_to_save_and_a_waiting_one_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = slurm(run, monkeypatch, "JobId=17 JobState=RUNNING")
    assert cancel(run, now=False) == ["job 17 (big) saves and ends"]
    assert calls.read_text().splitlines()[-1] == "scancel --batch --signal=TERM 17"
    assert attempts.is_forbidden(run / "launch")
    assert attempts.is_forbidden(run / "launch" / "big"), "also what comes before the run"
    assert cancel(run, now=True) == ["job 17 (big) is cancelled"]
    assert calls.read_text().splitlines()[-1] == "scancel 17"
    slurm(run, monkeypatch, "JobId=17 JobState=PENDING")
    assert cancel(run, now=False) == ["job 17 (big) is cancelled"]


@pytest.fixture
def array(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of an array of 5 commands: one has ended, one runs, two wait, and of one nothing is known."""
    slurm(
        run,
        monkeypatch,
        "JobId=18 ArrayJobId=17 ArrayTaskId=1 JobState=RUNNING NodeList=n0\n"
        "JobId=17 ArrayJobId=17 ArrayTaskId=2-3%2 JobState=PENDING NodeList=(null)\n"
        "JobId=19 ArrayJobId=17 ArrayTaskId=0 JobState=COMPLETED NodeList=n1",
    )
    folder = run / "launch"
    tasks.write(folder / tasks.FILE, [tasks.ArrayTask(("train", "a b", f"run.seed={n}"), None) for n in range(5)])
    time = "2026-01-01T00:00:00.000+00:00"
    attempts.append(folder / "task-0", Attempt(began=time, ended=time, status=0), "done")
    (folder / "task-1").mkdir()
    return folder.rename(run.parent / "array")


def test_an_array_says_how_each_command_stands(array: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "status", str(array)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{array}: 5 commands: 1 done, 1 running, 2 waiting, 1 unknown"
    assert said[1:3] == ["  0  done, done: train 'a b' run.seed=0", "  1  running, on n0: train 'a b' run.seed=1"]
    assert said[4].startswith("  3  waiting: ")


def test_a_build_in_one_job_says_how_it_stands(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = slurm(run, monkeypatch, "JobId=17 JobState=RUNNING NodeList=n0")
    folder = (run / "launch").rename(run.parent / "built.launch")
    assert main(["launch", "status", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{folder}: running", "  job 17 (big): RUNNING on n0"]
    assert cancel(folder, now=False) == ["job 17 (big) saves and ends"]
    assert calls.read_text().splitlines()[-1] == "scancel --batch --signal=TERM 17"
    (run.parent / "bin" / "scontrol").write_text("#!/bin/sh")  # Slurm knows it no more
    time = "2026-01-01T00:00:00.000+00:00"
    attempts.append(folder / "big", Attempt(began=time, ended=time, status=0), "done")  # as its supervisor does
    assert main(["launch", "status", str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{folder}: finished", "  attempts that ended: 1, of which 0 failed; the last: done"]


def test_an_array_is_cancelled_task_by_task(array: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = cancel(array, now=False)
    assert said == ["job 17_1 (big) saves and ends", "job 17_[2-3] (big) is cancelled"]
    asked = [line for line in (array.parent / "calls").read_text().splitlines() if line.startswith("scancel")]
    assert asked == ["scancel --batch --signal=TERM 17_1", "scancel 17_[2-3]"]
    assert attempts.is_forbidden(array / "task-1"), "what runs is not to be queued again"
    assert main(["launch", "status", str(array)]) == 0
    assert "1 done, 1 running, 2 waiting, 1 cancelled" in capsys.readouterr().out, "Slurm's word is newer"


def test_what_has_ended_can_not_be_cancelled(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(run, monkeypatch, "JobId=17 JobState=COMPLETED")
    with pytest.raises(ConfigError, match="no job of it is queued or running"):
        cancel(run, now=False)


def test_a_run_that_was_not_launched_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not started by `pretrain launch`"):
        cancel(tmp_path, now=False)
    assert not list(tmp_path.iterdir())


def test_the_supervisor_here_is_found_only_while_it_lives(run: Path) -> None:
    presence.write(run / "launch", None)
    (run / "launch" / "other").mkdir()
    found = json.loads((run / "launch" / "supervisor.json").read_text())
    assert found["pid"] == os.getpid()
    for change in ({"pid": 2**22 + 1}, {"host": "elsewhere"}, {"job": "17"}):
        (run / "launch" / "supervisor.json").write_text(json.dumps({**found, **change}))
        assert presence.here(run / "launch") is None


def test_a_folder_without_a_run_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run, and no records of a job"):
        status(tmp_path)
