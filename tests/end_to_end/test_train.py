"""`pretrain train`: stopped, killed, moved to another layout and started by torchrun, it stays the same run.

Started in new interpreters, as a user does: the uninterrupted run that all are compared with (console script), a stop
at once (`python -m pretrain`), and torchrun. Other commands are forked.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.process.local import free_port
from tests.end_to_end.conftest import environment, start_afresh
from tests.helpers import command
from tests.helpers.breadth import only

LATER = "save_seconds loss_scale device_peak_bytes host_peak_bytes"
"""keys that lines of metrics.jsonl have since"""
TENSOR_2 = ("parallel.tensor=2", "--nproc", "2")


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def events(run: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]


def heldout_losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "heldout"]


def assert_same_run(run: Path, expected: Path, tolerance: float) -> None:
    found, wanted = metrics(run), metrics(expected)
    assert [line["step"] for line in found] == list(range(1, 25))
    for key in ("data_hash", "tokens", "samples", "learning_rate"):
        assert [line[key] for line in found] == [line[key] for line in wanted], key
    losses = [[line["loss"] for line in lines] for lines in (found, wanted)]
    assert np.abs(np.subtract(*losses)).max() <= tolerance


def wait_for_steps(process: command.Command | subprocess.Popen[str], run: Path, steps: int) -> None:
    """Until `steps` steps are recorded. Raises AssertionError if the process ends first or takes a minute."""
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_bytes().splitlines()) < steps:
        assert process.poll() is None, process.printed if isinstance(process, command.Command) else "it ended"
        assert time.monotonic() < deadline, "no steps within a minute"
        time.sleep(0.01)


def test_an_uninterrupted_run_leaves_what_the_contract_says(uninterrupted: Path) -> None:
    keys = "step loss grad_norm learning_rate tokens samples data_hash step_seconds tokens_per_second mfu"
    assert all(set(line) == {*keys.split(), *LATER.split()} for line in metrics(uninterrupted))
    assert metrics(uninterrupted)[0]["mfu"] is None, "the peak of this CPU is not known"
    assert [p.name for p in sorted((uninterrupted / "checkpoints").iterdir())] == ["step-00000016", "step-00000024"]
    others = [name for name in events(uninterrupted) if name != "saved"]  # which come as the disk takes them
    assert others == ["started", "planned", "heldout", "heldout", "heldout", "finished"]
    assert events(uninterrupted)[-1] == "finished"
    assert metrics(uninterrupted)[-1]["loss"] < metrics(uninterrupted)[0]["loss"] - 0.3


def test_the_cost_of_saving_is_on_record(uninterrupted: Path) -> None:
    lines = [json.loads(line) for line in (uninterrupted / "events.jsonl").read_text().splitlines()]
    saved = [line for line in lines if line["event"] == "saved"]
    assert [(line["step"], line["tokens"]) for line in saved] == [(step, step * 8 * 32) for step in (8, 16, 24)]
    for line in saved:
        assert 0 <= line["waited_seconds"] <= line["seconds"]
    size_bytes = sum(path.stat().st_size for path in (uninterrupted / "checkpoints" / "step-00000024").iterdir())
    assert 0.8 * size_bytes < saved[-1]["bytes"] < size_bytes, "all but the manifest"
    after_a_save = {line["step"] for line in metrics(uninterrupted) if line["save_seconds"] > 0}
    assert after_a_save == {9, 17}


@pytest.mark.parametrize("number", only([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))
def test_stopped_by_a_signal_it_saves_and_goes_on_bit_for_bit(
    number: signal.Signals, config: Path, uninterrupted: Path
) -> None:
    run = config.parent / "run"
    process = command.Command("train", config, *TENSOR_2)
    wait_for_steps(process, run, 3)
    process.send_signal(number)
    assert process.wait(60) == 75, process.printed
    stopped_at = metrics(run)[-1]["step"]
    assert stopped_at < 24, "it was stopped before the end"
    assert (run / "checkpoints" / f"step-{stopped_at:08d}").is_dir()
    assert command.run("train", config, *TENSOR_2).returncode == 0
    assert_same_run(run, uninterrupted, tolerance=0)


def test_continued_on_another_number_of_ranks_it_is_the_same_run(config: Path, uninterrupted: Path) -> None:
    run = config.parent / "run"
    process = command.Command("train", config, "parallel.pipeline=2", "--nproc", "4")  # pipeline 2 x data 2
    wait_for_steps(process, run, 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert command.run("train", config, "parallel.context=2", "--nproc", "2").returncode == 0
    assert_same_run(run, uninterrupted, tolerance=1e-5)
    assert "resumed" in events(run)
    assert heldout_losses(run)[-1] == pytest.approx(heldout_losses(uninterrupted)[-1], abs=1e-5)


@pytest.mark.slow
def test_fp16_goes_on_with_its_loss_scale_under_another_sharding(config: Path, tmp_path: Path) -> None:
    """Stopped under DeepSpeed's stage 3, continued under its stage 2 in a pipeline, from a scale too high at first."""
    half = ["precision=fp16", "loss_scale={initial: 4194304, growth_interval: 5}", "parallel.zero_engine=deepspeed"]
    run, whole = config.parent / "run", tmp_path / "whole"
    done = command.run("train", config, *half, f"run.dir={whole}", "parallel.zero=1", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    process = command.Command("train", config, *half, "parallel.zero=3", "--nproc", "2")
    wait_for_steps(process, run, 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75, process.printed
    done = command.run("train", config, *half, "parallel.zero=2", "parallel.pipeline=2", "--nproc", "4")
    assert done.returncode == 0, done.stderr
    found, expected = metrics(run), metrics(whole)
    for key in ("step", "tokens", "data_hash", "loss_scale"):
        assert [line[key] for line in found] == [line[key] for line in expected], key
    left_out = [line["grad_norm"] is None for line in expected]
    assert left_out[0], "the scale was too high"
    assert [line["grad_norm"] is None for line in found] == left_out
    assert len({line["loss_scale"] for line in expected}) > 2, "it fell, and rose again"
    np.testing.assert_allclose([line["loss"] for line in found], [line["loss"] for line in expected], atol=5e-3)


def test_a_killed_rank_ends_the_run_and_the_next_start_loses_nothing(config: Path, uninterrupted: Path) -> None:
    run = config.parent / "run"
    process = command.Command("train", config, *TENSOR_2)
    wait_for_steps(process, run, 10)
    deadline = time.monotonic() + 60
    while not (run / "checkpoints" / "step-00000008").exists():
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert process.wait(60) == 1
    step = metrics(run)[-1]["step"]
    survivor, launcher = sorted(process.stderr.splitlines())
    assert launcher == "pretrain: rank 1 was ended by SIGKILL, as Linux does where memory runs out"
    assert re.fullmatch(
        rf"pretrain: rank 0 lost its peers at step ({step}|{step + 1}): .*; "
        r"run the same command again to resume from step (8|16)",
        survivor,
    )
    failed = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    assert failed["event"] == "failed"
    assert "Traceback" in failed["traceback"]
    assert command.run("train", config, *TENSOR_2).returncode == 0
    assert_same_run(run, uninterrupted, tolerance=0)


def test_a_run_s_data_can_be_looked_up(uninterrupted: Path) -> None:
    """The ledger has read what was planned, and each row of a step is made of documents, all tokens of them."""
    ledger = json.loads(command.run("data", "ledger", uninterrupted, "--json").stdout)
    assert ledger["realised"] == ledger["planned"]
    assert ledger["planned"][0]["samples"] == metrics(uninterrupted)[-1]["samples"] == 24 * 8
    lines = command.run("data", "trace", uninterrupted, "--step", "17", "--json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["row"] for row in rows] == list(range(8))
    assert all(sum(document["tokens"] for document in row["documents"]) == 33 for row in rows)


def test_a_killed_launcher_leaves_no_rank_behind(config: Path) -> None:
    process = command.Command("train", config, "train.steps=2000", *TENSOR_2)
    wait_for_steps(process, config.parent / "run", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    deadline = time.monotonic() + 20
    while any(_alive(int(child)) for child in children):
        assert time.monotonic() < deadline, "a rank outlived its launcher"
        time.sleep(0.1)


@pytest.mark.parametrize("nodes", only([1], [1, 2]))
def test_torchrun_on_nodes_is_the_same_run(nodes: int, config: Path, uninterrupted: Path) -> None:
    port = free_port()
    agents = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", str(node)),
                *("--nproc-per-node", str(2 // nodes), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *("-m", "pretrain", "train", str(config), "parallel.tensor=2"),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(nodes)
    ]
    outputs = [agent.communicate(timeout=120)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * nodes, outputs
    assert_same_run(config.parent / "run", uninterrupted, tolerance=0)


def test_a_finished_run_started_again_says_so_and_changes_nothing(uninterrupted: Path) -> None:
    before = _contents(uninterrupted)
    done = command.run("train", uninterrupted / "config.yaml", "--nproc", "2")
    assert done.returncode == 0
    assert "is finished" in done.stdout
    assert _contents(uninterrupted) == before


def test_a_run_killed_before_it_said_finished_says_so_at_the_next_start(uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[:-1]))
    assert "finished" not in events(run)
    done = command.run("train", uninterrupted / "config.yaml", f"run.dir={run}", "--nproc", "2")
    assert done.returncode == 0
    assert events(run) == events(uninterrupted)


def test_a_stop_at_once_is_not_lost(config: Path) -> None:
    """SIGTERM while Python and its libraries are still being loaded: nothing is left running, status 75."""
    process = start_afresh("train", config, "train.steps=100000", *TENSOR_2)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75, process.stdout and process.stdout.read()


def test_srun_tasks_join_one_run(config: Path, uninterrupted: Path) -> None:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    tasks = [
        command.Command(
            *("train", config, "parallel.tensor=2"),
            environment={**shared, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
        )
        for task in range(2)
    ]
    assert [task.wait(120) for task in tasks] == [0, 0], [task.printed for task in tasks]
    assert_same_run(config.parent / "run", uninterrupted, tolerance=0)


def _contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
