"""`pretrain launch slurm` on a real Slurm: a run comes to its end, and is the uninterrupted one, whatever ends it."""

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

import pytest

from tests.cluster.conftest import wait_for_steps
from tests.end_to_end.test_train import metrics
from tests.helpers import command
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STEPS = 300
LENGTH = [f"train.steps={STEPS}", "checkpoint.every_steps=40", "evaluate.every_steps=0", "checkpoint.keep=3"]
RESOURCES = ["--nodes", "2", "--ranks-per-node", "2", "--cpus-per-rank", "2", "--partition", "low"]


class Launched:
    """A run of 4 ranks on 2 nodes, submitted by the real command."""

    def __init__(self, cluster: Slurm, config: Path, *more: str) -> None:
        self.cluster, self.run = cluster, config.parent / "run"
        self.jobs = launch(cluster, str(config), *LENGTH, "parallel.tensor=2", *RESOURCES, *more)
        self.job = self.jobs[-1]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        path = self.run / "launch" / "attempts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in (self.run / "launch" / "logs").glob("*.out"))

    def reach(self, steps: int) -> None:
        """Until so many steps are on record."""
        try:
            wait_for_steps(self.cluster, self.job, self.run, steps)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-6000:]}") from None

    def end(self, *states: str, timeout_s: float = 900) -> None:
        """Until the job is over, in one of `states` (COMPLETED)."""
        try:
            self.cluster.wait(self.job, *(states or ("COMPLETED",)), timeout_s=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-6000:]}") from None

    def ranks(self) -> list[int]:
        """Processes that train."""
        found = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.cluster.processes("pretrain\0train")}
        return [pid for pid, line in found.items() if b"supervise" not in line and b"srun" not in line]


def launch(cluster: Slurm, *words: str) -> list[int]:
    """The numbers of the jobs that `pretrain launch slurm WORDS` submits."""
    done = subprocess.run(
        [sys.executable, "-m", "pretrain", "launch", "slurm", *words],
        env=cluster.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(number) for number in re.findall(r"^job (\d+):", done.stdout, re.MULTILINE)]


def pretrain(cluster: Slurm, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pretrain", *map(str, words)], env=cluster.environment, capture_output=True, text=True
    )


@pytest.fixture(scope="session")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The steps of the run that nothing happens to."""
    from tests.end_to_end.conftest import write_config

    config = write_config(dataset, tmp_path_factory.mktemp("whole"))
    done = command.run("train", config, *LENGTH, "parallel.tensor=2", "--nproc", "4", timeout_s=900)
    assert done.returncode == 0, done.stderr
    return metrics(config.parent / "run")


def assert_same(run: Path, whole: list[dict[str, Any]]) -> None:
    steps = metrics(run)
    for key in ("step", "loss", "grad_norm", "data_hash"):
        assert [line[key] for line in steps] == [line[key] for line in whole], key


def test_it_comes_to_its_end(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = Launched(cluster, config)
    launched.end()
    assert_same(launched.run, whole)
    assert [attempt["ending"] for attempt in launched.attempts] == ["done"]
    found = json.loads(pretrain(cluster, "launch", "status", launched.run, "--json").stdout)
    assert (found["state"], found["step"], found["steps"]) == ("finished", STEPS, STEPS)
    assert found["jobs"] == [f"{launched.job} (tiny): COMPLETED on n[0-1]"]


def kill_a_rank(launched: Launched) -> None:
    os.kill(launched.ranks()[-1], signal.SIGKILL)


def kill_the_launcher(launched: Launched) -> None:
    """srun: the job's step ends, and its script goes on."""
    for pid in launched.cluster.processes("srun\0"):
        if b"supervise" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_a_rank, kill_the_launcher])
def test_what_is_killed_starts_again_within_the_job(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]], kill: Callable[[Launched], None]
) -> None:
    launched = Launched(cluster, config)
    launched.reach(60)
    kill(launched)
    launched.end()
    assert_same(launched.run, whole)
    assert [attempt["ending"] for attempt in launched.attempts] == ["failed", "done"]
    assert launched.attempts[0]["saved"] >= 40
    assert cluster.restarts(launched.job) == 0


def test_at_its_time_limit_it_is_queued_again(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    """Of two minutes, the last 75 s are for saving."""
    launched = Launched(cluster, config, "--time", "2", "--sbatch=--signal=B:USR1@75")
    launched.reach(3)
    cluster.wait(launched.job, "PENDING", timeout_s=300)
    launched.end(timeout_s=1500)
    assert cluster.restarts(launched.job) >= 1
    assert_same(launched.run, whole)
    assert launched.attempts[0]["ending"] == "stopped"
    assert launched.attempts[-1]["ending"] == "done"


def test_scontrol_requeue_loses_nothing(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = Launched(cluster, config)
    launched.reach(60)
    cluster.scontrol("requeue", str(launched.job))
    cluster.wait(launched.job, "PENDING")
    release(launched)
    launched.end()
    assert_same(launched.run, whole)
    assert cluster.restarts(launched.job) == 1


def test_a_signal_by_hand_saves_and_queues_again(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = Launched(cluster, config)
    launched.reach(10)
    cluster.send(launched.job, "USR1")  # to the ranks alone
    cluster.wait(launched.job, "PENDING")
    release(launched)
    launched.end()
    assert_same(launched.run, whole)
    assert launched.attempts[0]["ending"] == "stopped"


def test_preempted_it_saves_and_goes_on_later(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = Launched(cluster, config)
    launched.reach(10)
    other = cluster.submit("#!/bin/bash\nsleep 5", "--partition=high", "--nodes=3", "--exclusive")
    cluster.wait(launched.job, "PENDING")
    cluster.wait(other, "COMPLETED")
    release(launched)
    launched.end()
    assert_same(launched.run, whole)


def test_a_node_that_fails_is_replaced(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = Launched(cluster, config)
    launched.reach(60)
    cluster.stop_node("n1", signal.SIGKILL)
    for pid in cluster.processes("slurmstepd: "):
        if b"n1" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    cluster.wait(launched.job, "PENDING", timeout_s=120)
    release(launched)
    launched.end()
    assert_same(launched.run, whole)
    assert launched.attempts[-1]["nodes"] == "n[0,2]"


def test_cancelled_it_saves_and_stays_away(cluster: Slurm, config: Path) -> None:
    launched = Launched(cluster, config)
    launched.reach(5)
    done = pretrain(cluster, "launch", "cancel", launched.run)
    assert done.stdout == f"job {launched.job} (tiny) saves and ends\n", done.stderr
    launched.end("FAILED")  # as Slurm calls every status but 0
    step = metrics(launched.run)[-1]["step"]
    assert (launched.run / "checkpoints" / f"step-{step:08d}").is_dir()
    assert [attempt["ending"] for attempt in launched.attempts] == ["stopped"]
    again = pretrain(cluster, "launch", "cancel", launched.run)
    assert again.returncode == 2
    assert "nothing of it is queued or running" in again.stderr


def test_a_hang_is_found_and_started_again(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = Launched(cluster, config, "health.hang_s=5")
    launched.reach(60)
    stopped = launched.ranks()[-1]
    os.kill(stopped, signal.SIGSTOP)
    launched.end()
    assert_same(launched.run, whole)
    first, second = launched.attempts
    assert (first["ending"], second["ending"]) == ("failed", "done")
    assert "hang" in first["reason"].lower(), first
    assert "hangs" in launched.log


def test_a_wrong_config_is_not_tried_again(cluster: Slurm, config: Path) -> None:
    launched = Launched(cluster, config)
    (launched.run / "launch" / "config.yaml").write_text("model: {layers: none}")
    launched.end("FAILED")
    assert [attempt["ending"] for attempt in launched.attempts] == ["config"]


def test_data_run_and_report_in_one_chain(cluster: Slurm, config: Path, text: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "built", tmp_path / "report"
    build = f"data build data/text input={text} output={data} tokenizer.vocabulary=500 validation_fraction=0.1"
    score = f"eval {config.parent / 'run'} --tasks heldout --out {out}"
    launched = Launched(cluster, config, f"data.path={data}", "train.steps=10", "--before", build, "--after", score)
    assert len(launched.jobs) == 3
    launched.end()
    assert [cluster.state(job) for job in launched.jobs] == ["COMPLETED"] * 3
    assert (out / "report.html").exists()


def test_an_array_runs_so_many_at_once(cluster: Slurm, config: Path, tmp_path: Path) -> None:
    lines = [f"train {config} train.steps=5 run.seed={seed} run.dir={tmp_path}/run-{seed}" for seed in range(4)]
    (tmp_path / "ladder").write_text("\n".join(lines))
    (job,) = launch(
        cluster, "--tasks", str(tmp_path / "ladder"), "--at-once", "2", "--directory", str(tmp_path / "array"),
        "--nodes", "1",
    )  # fmt: skip
    most, deadline = 0, time.monotonic() + 900
    while len(list(tmp_path.glob("run-*/checkpoints/step-00000005"))) < 4:
        most = max(most, sum(cluster.state_of_task(job, task) == "RUNNING" for task in range(4)))
        assert time.monotonic() < deadline, [path.read_text() for path in (tmp_path / "array" / "logs").iterdir()]
        time.sleep(0.5)
    assert most == 2
    for task in range(4):
        record = json.loads((tmp_path / "array" / f"task-{task}" / "attempts.jsonl").read_text())
        assert record["ending"] == "done"


def release(launched: Launched) -> None:
    """A job that is queued again waits for two minutes before it may start, unless it is told to begin."""
    launched.cluster.scontrol("update", f"jobid={launched.job}", "starttime=now")
