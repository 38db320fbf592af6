"""`pretrain train` on disks in trouble: it goes on, says so, and is the same run in the end; or it ends on every rank
with what is wrong and a checkpoint to go on from."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint import saver, unsaved
from pretrain.observe import run_dir_writer
from pretrain.run_dir import json_lines
from pretrain.run_dir.records import read_metrics
from tests.end_to_end.conftest import write_config
from tests.end_to_end.test_train import TENSOR_2, assert_same_run, metrics, wait_for_steps
from tests.helpers import command
from tests.helpers.disks import BreakableDisk, fails_now_and_then, fill, resize, small_disk


def impatient(tries: tuple[float, ...] = (0.2,) * 8) -> None:
    """Before a command: what is tried again is so at once."""
    saver._LAST_TRIES_S = tries
    unsaved._FIRST_S = json_lines._AGAIN_S = 0.05
    run_dir_writer._PATIENCE_S, run_dir_writer._CLOSE_S = 10.0, 0.5


def faulty(directory: Path, share: float, seed: int) -> None:
    """Before a command."""
    impatient()
    fails_now_and_then(directory, share, seed)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


def wait_for(process: command.Command, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.printed
        assert time.monotonic() < deadline, process.printed
        time.sleep(0.01)


def sentences(process: command.Command) -> list[str]:
    assert "Traceback" not in process.stderr, process.stderr
    return [line for line in process.stderr.splitlines() if line.startswith("pretrain: ")]


def test_a_disk_that_is_full_for_a_while_costs_nothing(config: Path, uninterrupted: Path, tmp_path: Path) -> None:
    checkpoint = sum(path.stat().st_size for path in (uninterrupted / "checkpoints" / "step-00000024").iterdir())
    with small_disk(tmp_path / "disk", round(1.5 * checkpoint)) as disk:
        run = disk / "run"
        process = command.Command("train", config, f"run.dir={run}", *TENSOR_2, first=impatient)
        wait_for(process, (run / "checkpoints" / "step-00000008").exists)
        ballast = fill(disk)
        wait_for(process, lambda: "step-00000016 failed" in process.stderr)
        ballast.unlink()
        resize(disk, 64 << 20)
        assert process.wait(120) == 0, process.printed
        assert_same_run(run, uninterrupted, tolerance=0)
        first = events(run, "save_failed")[0]
        assert (first["step"], first["unsaved_steps"], first["saved_step"], first["limit_steps"]) == (16, 8, 8, 80)
        assert "no space left on the disk of" in first["reason"]
        assert events(run, "saved")[-1]["step"] == 24
        assert events(run, "finished")
        said = next(line for line in sentences(process) if "step-00000016" in line)
        assert said.endswith("; 8 steps since step 8 are not saved; 80 of them end the run")
        assert not list((run / "checkpoints").glob("*.tmp"))


@pytest.mark.slow
def test_a_run_directory_that_is_deleted_is_made_again(config: Path, uninterrupted: Path) -> None:
    run = config.parent / "run"
    process = command.Command("train", config, *TENSOR_2, first=impatient)
    wait_for_steps(process, run, 3)
    moved = run.rename(run.with_name("moved"))  # at once
    shutil.rmtree(moved)
    assert process.wait(120) == 0, process.printed
    assert_same_run(run, uninterrupted, tolerance=0)
    assert any("was deleted while the run writes to it" in line for line in sentences(process))
    assert next(map(json.loads, (run / "events.jsonl").open()))["event"] == "started"
    assert {path.name for path in run.iterdir()} >= {"config.yaml", "checkpoints", "lock", "metrics.jsonl"}
    newest = run / "checkpoints" / "step-00000024"
    done = command.run("train", config, *TENSOR_2, "train.steps=24")
    assert done.returncode == 0, done.stderr
    assert newest.exists()


@pytest.mark.slow
def test_a_run_whose_directory_another_has_taken_ends(config: Path) -> None:
    run, endless = config.parent / "run", "train.steps=100000"
    process = command.Command("train", config, endless, *TENSOR_2, first=impatient)
    wait_for_steps(process, run, 3)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for rank in ranks:
        os.kill(int(rank), signal.SIGSTOP)  # or it would have the directory back before another could come
    run.rename(run.with_name("moved"))
    other = command.Command("train", config, endless)
    try:
        wait_for_steps(other, run, 3)
        for rank in ranks:
            os.kill(int(rank), signal.SIGCONT)
        assert process.wait(120) == 1, process.printed
        assert sentences(process)[-1].endswith("was deleted under this run, and another run writes to it by now")
        assert other.poll() is None, other.printed
    finally:
        other.kill()
        process.kill()
    steps = [line["step"] for line in read_metrics(run)]
    assert steps == list(range(1, len(steps) + 1)), "it did not touch the other's files"


@pytest.mark.slow
def test_a_volume_that_turns_read_only_ends_the_run_on_all_ranks_with_what_is_saved(
    config: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    with BreakableDisk(tmp_path / "image", tmp_path / "disk", 32 << 20) as disk:
        run = disk.place / "run"
        arguments = ("train", config, f"run.dir={run}", *TENSOR_2)
        process = command.Command(*arguments, first=partial(impatient, (0.1,)))
        events = run / "events.jsonl"
        wait_for(process, lambda: events.exists() and '"saved", "step": 8' in events.read_text())  # and so on the disk
        disk.fail()
        assert process.wait(120) == 1, process.printed
        said = sentences(process)
        assert any("metrics.jsonl cannot be written (Read-only file system)" in line for line in said)
        assert any("failed: Read-only file system" in line and "restore access" in line for line in said)
        assert "after 2 tries the run ends" in said[-1]
        again = command.run(*arguments)
        assert again.returncode == 1, "the same command may find it well later"
        assert f"{run} cannot be written (Read-only file system)" in again.stderr
        assert again.stderr.count("pretrain: ") == 1
        disk.repair()
        assert (run / "checkpoints" / "step-00000008").exists()
        done = command.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert_same_run(run, uninterrupted, tolerance=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_run_whose_disk_fails_again_and_again_is_the_same_run(seed: int, config: Path, uninterrupted: Path) -> None:
    run, share = config.parent / "run", (0.02, 0.05, 0.1)[seed % 3]
    process = command.Command(
        *("train", config, "checkpoint.every_steps=4", "checkpoint.unsaved_steps=1000", *TENSOR_2),
        first=partial(faulty, run, share, seed),
    )
    status = process.wait(300)
    failures = [line for line in sentences(process) if "are not saved" in line]
    assert failures, "the disk has failed"
    if status == 1:  # the last save was tried nine times
        assert "the run ends" in sentences(process)[-1]
        assert command.run("train", config, *TENSOR_2).returncode == 0
    else:
        assert status == 0, process.printed
    assert_same_run(run, uninterrupted, tolerance=0)
    kept = sorted(path.name for path in (run / "checkpoints").iterdir() if path.suffix != ".tmp")
    assert kept[-1] == "step-00000024"


@pytest.mark.slow
def test_a_quota_is_a_full_disk(dataset: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """One that never has room for a first checkpoint: it ends at its limit, and begins again once there is some."""
    with small_disk(tmp_path / "disk", 1 << 17) as disk:
        config = write_config(dataset, disk)
        process = command.Command(
            *("train", config, "train.steps=200", "schedule.decay_tokens=10000", "checkpoint.unsaved_steps=24"),
            *("track.mlflow=true", *TENSOR_2),
            first=partial(impatient, (0.1,)),
        )
        assert process.wait(120) == 1
        assert "24 steps are lost" in sentences(process)[-1]
        assert process.printed.count("MLflow at sqlite:") == 1, "its own trouble is said once, and ends nothing"
        assert metrics(disk / "run")[-1]["step"] == 24, "it ends at its limit"
        ballast = fill(disk)
        again = command.run("train", config, *TENSOR_2)
        assert again.returncode == 1
        assert ".jsonl cannot be written (No space left on device)" in again.stderr
        assert again.stderr.count("pretrain: ") == 1
        ballast.unlink()
        resize(disk, 64 << 20)
        assert command.run("train", config, *TENSOR_2).returncode == 0
        assert_same_run(disk / "run", uninterrupted, tolerance=0)


def test_mounts_are_taken_away_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 16):
        assert str(tmp_path) in Path("/proc/mounts").read_text()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert str(tmp_path) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout
