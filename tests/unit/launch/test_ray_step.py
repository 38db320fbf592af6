"""A Ray cluster on the nodes of a step: who starts what, and what ends when, with a stand-in for Ray's command."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RAY = """
import socket, sys, time
from pathlib import Path
folder = Path(__file__).parents[2]
with (folder / "started").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
port = [int(word[7:]) for word in sys.argv if word.startswith("--port=")]
if port:
    server = socket.create_server(("127.0.0.1", port[0]))
time.sleep(600)
"""
COMMAND = """
import os, signal, sys, time
from pathlib import Path
here = Path(__file__).parents[1]
(here / "ran").write_text(" ".join([*sys.argv[1:], os.environ["RAY_ADDRESS"]]))
while "wait" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
    (here / "waits").touch()
    time.sleep(0.1)
sys.exit(3)
"""


@pytest.fixture
def step(tmp_path: Path) -> dict[str, str]:
    """The environment of a task of a step on this machine, with stand-ins for Ray and for pretrain's command line."""
    for name, text in {"ray/scripts/scripts.py": RAY, "pretrain/__main__.py": COMMAND}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for part in ("process", "errors.py", "__init__.py"):
        (tmp_path / "pretrain" / part).symlink_to(ROOT / "pretrain" / part)
    (tmp_path / "launch").symlink_to(ROOT / "launch")
    slurm = {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid() % 17_000), "SLURM_STEP_ID": "1"}
    return {**os.environ, **slurm, "PYTHONPATH": str(tmp_path)}


def start(step: dict[str, str], task: int, *command: str) -> subprocess.Popen[str]:
    short = "import sys, launch.slurm.ray_step as step; step._LOOK_S = 0.2; sys.exit(step.main(sys.argv[1:]))"
    words = [sys.executable, "-c", short, *command]
    return subprocess.Popen(
        words, env={**step, "SLURM_PROCID": str(task)}, cwd=step["PYTHONPATH"], stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.1)


def test_the_first_task_runs_the_command_on_a_cluster_that_others_join_and_leave(
    step: dict[str, str], tmp_path: Path
) -> None:
    other = start(step, 1)
    first = start(step, 0, "data", "build", "wait")
    wait_for(tmp_path / "waits")
    end = time.monotonic() + 120
    while (tmp_path / "started").read_text().count("\n") < 2 and time.monotonic() < end:
        time.sleep(0.1)
    for task in (other, first):  # as Slurm does
        task.send_signal(signal.SIGUSR1)
    assert first.wait(120) == 75
    assert other.wait(30) == 0, "what it started did not end when asked to"
    head, node = (tmp_path / "started").read_text().splitlines()
    address = (tmp_path / "ran").read_text().split()[-1]
    assert (tmp_path / "ran").read_text() == f"data build wait {address}"
    assert f"--node-ip-address={address.split(':')[0]} --port={address.split(':')[1]} " in head
    assert head.startswith("start --head")
    assert node.startswith(f"start --address={address} --num-cpus={len(os.sched_getaffinity(0))}")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address.split(":")[0], int(address.split(":")[1])))


def test_the_status_is_the_commands(step: dict[str, str], tmp_path: Path) -> None:
    assert start(step, 0, "data", "build").wait(120) == 3


def test_a_cluster_that_does_not_start_is_a_sentence(step: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ray/scripts/scripts.py").write_text("raise SystemExit(1)")
    task = start(step, 0, "data", "build")
    assert task.wait(120) == 1
    assert task.stderr is not None
    assert "the Ray cluster could not be started" in task.stderr.read()
    assert not (tmp_path / "ran").exists()


def test_it_is_for_srun_to_start(step: dict[str, str]) -> None:
    del step["SLURM_STEP_ID"]
    task = start(step, 0, "data", "build")
    assert task.wait(120) == 2
    assert task.stderr is not None
    assert "SLURM_STEP_ID is not set" in task.stderr.read()
