"""`pretrain launch slurm` on a real Slurm: a run comes to its end, and is the uninterrupted one, whatever ends it."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain.run_dir.records import read_events, read_metrics
from tests.end_to_end.conftest import write_config
from tests.helpers import command, disks
from tests.helpers.launched import Launched, assert_same, fail_node, kill, launch, pretrain, python_that
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STEPS = 160
LENGTH = [f"train.steps={STEPS}", "checkpoint.every_steps=40", "evaluate.every_steps=0", "checkpoint.keep=3"]
SLOW_STEPS = """
import time
from pretrain.engine.megatron.engine import MegatronEngine
plain = MegatronEngine.train_step
def train_step(engine, *arguments):
    time.sleep(SECONDS)
    return plain(engine, *arguments)
MegatronEngine.train_step = train_step
"""
WRONG_PRODUCTS = """
import os
from pretrain.preflight import machine
plain = machine.product
if os.environ["SLURMD_NODENAME"] == "n1":
    machine.product = lambda device: (plain(device)[0], False)
"""
RESOURCES = ["--nodes", "2", "--ranks-per-node", "1", "--cpus-per-rank", "2", "--partition", "low"]


def launched_by(cluster: Slurm, config: Path, *more: str) -> Launched:
    """A run of 2 ranks on 2 nodes."""
    return Launched(cluster, config.parent / "run", str(config), *LENGTH, "parallel.tensor=2", *RESOURCES, *more)


@pytest.fixture(scope="session")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The steps of the run that nothing happens to."""
    config = write_config(dataset, tmp_path_factory.mktemp("whole"))
    done = command.run("train", config, *LENGTH, "parallel.tensor=2", "--nproc", "2", timeout_s=900)
    assert done.returncode == 0, done.stderr
    return read_metrics(config.parent / "run")


def test_it_comes_to_its_end(cluster: Slurm, config: Path, tmp_path: Path) -> None:
    launched = launched_by(cluster, config, "--ranks-per-node", "2")
    launched.wait()
    local = ["parallel.tensor=2", f"run.dir={tmp_path}/local", "--nproc", "4"]
    done = command.run("train", config, *LENGTH, *local, timeout_s=900)
    assert done.returncode == 0, done.stderr
    assert_same(launched.run, read_metrics(tmp_path / "local"))
    assert [attempt["ending"] for attempt in launched.attempts] == ["done"]
    found = json.loads(pretrain(cluster, "launch", "status", launched.run, "--json").stdout)
    assert (found["state"], found["step"], found["steps"]) == ("finished", STEPS, STEPS)
    assert found["jobs"] == [f"{launched.job} (tiny): COMPLETED on n[0-1]"]


def kill_a_rank(launched: Launched) -> None:
    kill(launched.ranks()[-1])


def kill_srun(launched: Launched) -> None:
    """The job's step ends, and its script continues."""
    for pid in launched.srun():
        kill(pid)


@pytest.mark.parametrize("kills", [kill_a_rank, kill_srun])
def test_what_is_killed_starts_again_within_the_job(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]], kills: Callable[[Launched], None]
) -> None:
    launched = launched_by(cluster, config)
    launched.reach(60)
    kills(launched)
    launched.wait()
    assert_same(launched.run, whole)
    assert [attempt["ending"] for attempt in launched.attempts] == ["failed", "done"]
    assert launched.attempts[0]["saved"] >= 40
    assert cluster.restarts(launched.job) == 0


def test_a_supervisor_that_is_killed_comes_back_and_loses_nothing(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]]
) -> None:
    launched = launched_by(cluster, config)
    launched.reach(60)
    (_,), (supervisor,) = launched.supervisors()
    kill(supervisor)
    launched.wait()
    assert_same(launched.run, whole)
    assert cluster.restarts(launched.job) == 0
    assert "the supervisor was ended by signal 9: it restarts" in launched.log
    stopped, resumed = [e for e in read_events(launched.run) if e["event"] in ("stopped", "resumed")]
    assert (stopped["event"], resumed["event"]) == ("stopped", "resumed")
    assert stopped["step"] == resumed["step"]


def test_a_supervisor_that_is_stopped_goes_on(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = launched_by(cluster, config)
    launched.reach(60)
    (_,), (supervisor,) = launched.supervisors()
    kill(supervisor, signal.SIGSTOP)
    launched.wait()
    assert_same(launched.run, whole)
    assert "the supervisor was stopped by signal 19: it resumes in 10 s" in launched.log
    assert [attempt["ending"] for attempt in launched.attempts] == ["done"]


def test_a_node_that_computes_wrongly_is_left_out(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    launched = launched_by(cluster, config, "--python", python_that(tmp_path, WRONG_PRODUCTS))
    deadline = time.monotonic() + 300
    while cluster.job(launched.job).get("ExcNodeList") != "n1":
        assert time.monotonic() < deadline, launched.said()
        time.sleep(0.5)
    launched.release()
    launched.wait()
    assert_same(launched.run, whole)
    first, last = launched.attempts
    assert (first["bad_nodes"], first["ending"]) == (["n1"], "failed")
    assert (last["nodes"], last["ending"]) == ("n[0,2]", "done")
    assert "n1: failed the preflight tests or a replayed step, and excluded from now on" in launched.log


def test_a_disk_that_is_full_for_a_while_ends_no_run(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The disk that holds checkpoints, records and logs."""
    with disks.small_disk(tmp_path / "disk", 512 << 20) as disk:
        words = [str(config), *LENGTH, f"run.dir={disk}/run", "parallel.tensor=2", *RESOURCES]
        launched = Launched(
            cluster, disk / "run", *words, "--python", python_that(tmp_path, SLOW_STEPS.replace("SECONDS", "0.15"))
        )
        launched.reach(60)
        ballast = disks.fill(disk)
        time.sleep(15)
        assert len(read_metrics(launched.run)) < 150, "its lines find no room"
        ballast.unlink()
        launched.wait()
        assert_same(launched.run, whole)
        assert [attempt["ending"] for attempt in launched.attempts] == ["done"]
        assert "save_failed" in [event["event"] for event in read_events(launched.run)]


def test_a_disk_that_stays_full_ends_the_run_which_goes_on_when_there_is_room(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    with disks.small_disk(tmp_path / "disk", 512 << 20) as disk:
        words = [str(config), *LENGTH, f"run.dir={disk}/run", "parallel.tensor=2", "checkpoint.unsaved_steps=60"]
        launched = Launched(cluster, disk / "run", *words, *RESOURCES)
        launched.reach(60)
        ballast = disks.fill(disk)
        launched.wait("FAILED")
        kept = sorted((launched.run / "checkpoints").iterdir())
        assert kept, "the newest checkpoint is there"
        ballast.unlink()
        again = Launched(cluster, disk / "run", *words, *RESOURCES)
        again.wait()
        assert_same(again.run, whole)


def test_at_its_time_limit_it_is_queued_again(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The last 100 s of three minutes are for saving, and Slurm signals them up to half a minute early."""
    slowly = ["--python", python_that(tmp_path, SLOW_STEPS.replace("SECONDS", "0.5"))]
    launched = launched_by(cluster, config, "--time", "3", "--sbatch=--signal=B:USR1@100", *slowly)
    launched.wait(timeout_s=1500)
    assert cluster.restarts(launched.job) >= 1
    assert_same(launched.run, whole)
    assert launched.attempts[0]["ending"] == "stopped"
    assert launched.attempts[-1]["ending"] == "done"


def test_scontrol_requeue_loses_nothing(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = launched_by(cluster, config)
    launched.reach(60)
    cluster.scontrol("requeue", str(launched.job))
    cluster.wait(launched.job, "PENDING")
    launched.release()
    launched.wait()
    assert_same(launched.run, whole)
    assert cluster.restarts(launched.job) == 1


def test_a_signal_by_hand_saves_and_queues_again(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = launched_by(cluster, config)
    launched.reach(10)
    cluster.send(launched.job, "USR1")  # to the ranks alone
    cluster.wait(launched.job, "PENDING")
    launched.release()
    launched.wait()
    assert_same(launched.run, whole)
    assert launched.attempts[0]["ending"] == "stopped"


def test_preempted_it_saves_and_goes_on_later(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = launched_by(cluster, config)
    launched.reach(10)
    other = cluster.submit("#!/bin/bash\nsleep 5", "--partition=high", "--nodes=3", "--exclusive")
    cluster.wait(launched.job, "PENDING")
    cluster.wait(other, "COMPLETED")
    launched.release()
    launched.wait()
    assert_same(launched.run, whole)


def test_a_node_that_fails_is_replaced(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = launched_by(cluster, config)
    launched.reach(60)
    fail_node(cluster, "n1")
    cluster.wait(launched.job, "PENDING", timeout_s=120)
    launched.release()
    launched.wait()
    assert_same(launched.run, whole)
    assert launched.attempts[-1]["nodes"] == "n[0,2]"


def test_without_a_lost_node_it_goes_on_where_it_may_shrink(cluster: Slurm, config: Path, tmp_path: Path) -> None:
    words = [str(config), *LENGTH, *RESOURCES, "health.hang_s=5", "--lost-node", "shrink"]
    launched = Launched(cluster, config.parent / "run", *words)
    launched.reach(60)
    fail_node(cluster, "n1")
    launched.wait()
    assert cluster.restarts(launched.job) == 0
    assert launched.attempts[-1]["ending"] == "done"
    *_, last = (event for event in read_events(launched.run) if event["event"] == "resumed")
    assert (last["written_on"], last["continued_on"]) == ("tp1pp1dp2+zero1", "tp1pp1dp1+zero1")
    done = command.run("train", config, *LENGTH, f"run.dir={tmp_path}/alone", timeout_s=900)
    assert done.returncode == 0, done.stderr
    found, alone = read_metrics(launched.run), read_metrics(tmp_path / "alone")
    assert [line["data_hash"] for line in found] == [line["data_hash"] for line in alone]
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(found, alone, strict=True)) <= 1e-4


def test_a_spare_node_replaces_a_lost_one_within_the_job(
    cluster: Slurm, config: Path, whole: list[dict[str, Any]]
) -> None:
    launched = launched_by(cluster, config, "health.hang_s=5", "--spare", "1")
    launched.reach(60)
    fail_node(cluster, "n1")
    launched.wait()
    assert_same(launched.run, whole)
    assert cluster.restarts(launched.job) == 0
    assert [attempt["ending"] for attempt in launched.attempts] == ["failed", "done"]


def test_cancelled_it_saves_and_stays_away(cluster: Slurm, config: Path) -> None:
    launched = launched_by(cluster, config)
    launched.reach(5)
    done = pretrain(cluster, "launch", "cancel", launched.run)
    assert done.stdout == f"job {launched.job} (tiny) saves and ends\n", done.stderr
    launched.wait("CANCELLED")
    step = read_metrics(launched.run)[-1]["step"]
    assert (launched.run / "checkpoints" / f"step-{step:08d}").is_dir()
    assert [attempt["ending"] for attempt in launched.attempts] == ["stopped"]
    again = pretrain(cluster, "launch", "cancel", launched.run)
    assert again.returncode == 2
    assert "no job of it is queued or running" in again.stderr


def test_a_hang_is_found_and_started_again(cluster: Slurm, config: Path, whole: list[dict[str, Any]]) -> None:
    launched = launched_by(cluster, config, "health.hang_s=5")
    launched.reach(60)
    kill(launched.ranks()[-1], signal.SIGSTOP)
    launched.wait()
    assert_same(launched.run, whole)
    first, second = launched.attempts
    assert (first["ending"], second["ending"]) == ("failed", "done")
    assert "hang" in first["reason"].lower(), first
    assert "hangs" in launched.log


def test_a_wrong_config_is_not_tried_again(cluster: Slurm, config: Path) -> None:
    launched = launched_by(cluster, config)
    (launched.run / "launch" / "config.yaml").write_text("model: {layers: none}")
    launched.wait("FAILED")
    assert [attempt["ending"] for attempt in launched.attempts] == ["config"]


def test_data_run_and_report_in_one_chain(cluster: Slurm, config: Path, text: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "built", tmp_path / "report"
    build = f"data build data/text input={text} output={data} tokenizer.vocabulary=500 validation_fraction=0.1"
    score = f"eval {config.parent / 'run'} --tasks heldout --out {out}"
    launched = launched_by(cluster, config, f"data.path={data}", "train.steps=10", "--before", build, "--after", score)
    assert len(launched.jobs) == 3
    launched.wait()
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
    while len(ended := list((tmp_path / "array").glob("task-*/attempts.jsonl"))) < 4:
        most = max(most, sum(cluster.state_of_task(job, task) == "RUNNING" for task in range(4)))
        assert time.monotonic() < deadline, [path.read_text() for path in (tmp_path / "array" / "logs").iterdir()]
        time.sleep(0.5)
    assert most == 2
    assert [[json.loads(line)["ending"] for line in path.read_text().splitlines()] for path in ended] == [["done"]] * 4
    assert len(list(tmp_path.glob("run-*/checkpoints/step-00000005"))) == 4


def test_an_array_that_is_cancelled_saves_what_runs_and_begins_nothing(
    cluster: Slurm, config: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "array"
    lines = [f"train {config} train.steps=100000 run.dir={tmp_path}/run-{n}" for n in range(3)]
    (tmp_path / "ladder").write_text("\n".join(lines))
    launch(cluster, "--tasks", str(tmp_path / "ladder"), "--at-once", "1", "--directory", str(folder), "--nodes", "1")
    deadline = time.monotonic() + 300
    while not (tmp_path / "run-0" / "metrics.jsonl").exists():
        assert time.monotonic() < deadline, pretrain(cluster, "launch", "logs", folder).stdout
        time.sleep(0.5)
    assert "1 running, 2 waiting" in pretrain(cluster, "launch", "status", folder).stdout
    assert "saves and ends" in pretrain(cluster, "launch", "cancel", folder).stdout
    while "1 stopped, 2 cancelled" not in (said := pretrain(cluster, "launch", "status", folder).stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    assert list(tmp_path.glob("run-0/checkpoints/step-*")), "it has saved"
    assert not list(tmp_path.glob("run-[12]")), "the others have not begun"
