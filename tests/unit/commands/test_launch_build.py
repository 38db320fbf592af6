"""`pretrain launch build`: the job of each executor, and what is refused before anything is queued."""

import json
import stat
from pathlib import Path

import pytest

from pretrain.commands import launch_build
from tests.unit.launch.test_script import command, options


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A text to build from, and Slurm that takes every job."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\necho 101\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A text.\n")
    return ["data/text", "input=book.txt", "output=sets/book", "--cpus-per-rank", "8"]


def submitted(*words: str) -> str:
    assert launch_build.main([*words]) == 0
    assert Path("calls").read_text() == f"--parsable {Path('sets/book.launch/build-book.sbatch').absolute()}\n"
    return Path("sets/book.launch/build-book.sbatch").read_text()


def test_a_ray_cluster_has_a_task_on_each_node_of_one_job(given: list[str]) -> None:
    text = submitted(*given, "executor=ray", "--nodes", "4")
    found, words = options(text), command(text)
    assert (found["nodes"], found["ntasks-per-node"], found["cpus-per-task"]) == ("4", "1", "8")
    assert "array" not in found
    srun = words.index("srun")
    assert {"--nodes=4", "--ntasks-per-node=1", "--kill-on-bad-exit=0"} <= set(words[srun:])
    assert words[-8:] == ["-m", "launch.slurm.ray_step", "data", "build", *given[:3], "executor=ray"]


def test_a_folder_is_shared_by_an_array_of_equal_commands(given: list[str]) -> None:
    text = submitted(*given, "executor=folder", "--nodes", "4")
    found, words = options(text), command(text)
    assert (found["nodes"], found["array"], found["cpus-per-task"]) == ("1", "0-3%4", "8")
    assert "srun" not in words
    assert words[-3:][1:] == ["-m", "pretrain"]
    tasks = [json.loads(line) for line in Path("sets/book.launch/tasks.jsonl").read_text().splitlines()]
    assert tasks == [{"command": ["data", "build", *given[:3], "executor=folder"], "run_dir": None}] * 4


def test_processes_are_one_command_on_one_node(given: list[str]) -> None:
    text = submitted(*given, "--nodes", "1")
    assert options(text)["nodes"] == "1"
    assert command(text)[-7:] == ["-m", "pretrain", "data", "build", *given[:3]]


@pytest.mark.parametrize("executor", ["processes", "folder", "ray"])
def test_a_node_gives_its_cores_and_no_gpu(given: list[str], executor: str) -> None:
    nodes = "1" if executor == "processes" else "4"
    text = submitted(*given, "--gpus-per-node", "4", f"executor={executor}", "--nodes", nodes, "--restarts", "7")
    found = options(text)
    assert found["cpus-per-task"] == "32"  # those of each rank that a run would have there, of which there are 4
    assert not any("gpu" in name or "gres" in name for name in found)
    words = command(text)
    assert words[words.index("--restarts") + 1] == "7"


def test_a_dry_run_leaves_nothing_behind(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch_build.main([*given, "executor=ray", "--nodes", "4", "--dry-run"]) == 0
    assert "launch.slurm.ray_step" in capsys.readouterr().out
    assert not Path("sets").exists()
    assert not Path("calls").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2"], "executor: processes is for one node"),
        (["--nodes", "2", "executor=ray", "ray_address=auto"], "the job starts a Ray cluster of its own"),
        (["--nodes", "2", "executor=ray", "input=nowhere.txt"], "nowhere.txt"),
        (["--nodes", "2", "executor=spark"], "executor"),
        (["--nodes", "1", "ray_address=auto"], "ray_address requires executor: ray"),
        (["--nodes", "1", "executor=ray", "ray_address=ray://a:1"], "ray_address"),
    ],
)
def test_mistakes_are_sentences_before_anything_is_queued(given: list[str], words: list[str], said: str) -> None:
    with pytest.raises(Exception, match=said) as raised:
        launch_build.main([*given, *words])
    assert type(raised.value).__name__ in ("ConfigError", "DataError")
    assert not Path("calls").exists()
    assert not Path("sets").exists()
