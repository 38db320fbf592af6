"""Two nodes without Slurm, as Kubernetes and SkyPilot start them: here, processes that share a folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from tests.helpers import command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
SMALL = (
    *("batch={sequences: 8, micro_sequences: 2}", "schedule={name: constant}", "track.mlflow=false", "parallel={}"),
    *("evaluate={every_steps: 0}", "checkpoint.every_steps=10", "model.hidden=32", "model.heads=2", "model.layers=2"),
    *("model.sequence_length=64", "health.rendezvous_timeout_s=60", f"train.steps={STEPS}"),
)


def _node(index: int, run: Path, config: Path, job: str) -> subprocess.Popen[bytes]:
    words = ["--run", run, "--job", job, "--index", index, "--nodes", 2, "--ranks", 1, "--address", "127.0.0.1"]
    words += ["--port", 29_000 + os.getpid() % 2000, "--", "train", config]
    with (run.parent / f"{job}-{index}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "launch.nodes.supervise", *map(str, words)], stdout=log, stderr=log
        )


def _lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _await_step(run: Path, step: int) -> None:
    end = time.monotonic() + 240
    while not any(line["step"] >= step for line in _lines(run / "metrics.jsonl")):
        assert time.monotonic() < end, "".join(log.read_text() for log in run.parent.glob("*.log"))
        time.sleep(0.05)


def _ends(nodes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [node.wait(timeout=180) for node in nodes]


def test_a_killed_rank_and_an_evicted_node_change_no_number(dataset: Path, tmp_path: Path) -> None:
    same = (f"data.path={dataset}", *SMALL)
    done = command.run("train", "configs/debug/gpt.yaml", f"run.dir={tmp_path / 'alone'}", *same, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    expected = {
        line["step"]: (line["loss"], line["data_hash"]) for line in _lines(tmp_path / "alone" / "metrics.jsonl")
    }
    config = tmp_path / "config.yaml"
    run = tmp_path / "run"
    config.write_text(dump(load(RunConfig, "configs/debug/gpt.yaml", [f"run.dir={run}", *same])))
    nodes = [_node(index, run, config, "a") for index in range(2)]
    try:
        _await_step(run, 12)
        ranks = [one for one in psutil.Process(nodes[1].pid).children(recursive=True) if "pretrain" in one.cmdline()]
        assert len(ranks) == 1
        ranks[0].kill()
        _await_step(run, 25)
        nodes[1].send_signal(signal.SIGTERM)  # as an eviction does
        assert _ends(nodes) == [75, 75]
        nodes = [_node(index, run, config, "a") for index in range(2)]
        assert _ends(nodes) == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    found = {line["step"]: (line["loss"], line["data_hash"]) for line in _lines(run / "metrics.jsonl")}
    assert found == expected, "bit-equal on the same layout"
    attempts = _lines(run / "launch" / "attempts.jsonl")
    assert [line["ending"] for line in attempts] == ["failed", "stopped", "done"]
    assert "restart 1 of 3, from step" in str(attempts[0]["then"])
    late = _node(1, run, config, "a")
    assert _ends([late]) == [0], "a node that is replaced after the end has nothing to do"


def test_a_wrong_config_ends_all_nodes_with_2(dataset: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: {layers: none}\n")
    nodes = [_node(index, tmp_path / "run", config, "b") for index in range(2)]
    assert _ends(nodes) == [2, 2]
