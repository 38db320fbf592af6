"""The job script of docs/multi-node.md, on two nodes with two ranks each."""

import json
import re
from pathlib import Path

import pytest

from tests.cluster.conftest import wait_for_steps
from tests.end_to_end.test_train import metrics
from tests.helpers import command
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
PAGE = Path(__file__).parents[2] / "docs" / "multi-node.md"
SETTINGS = ["schedule.warmup_tokens=4096", "track.mlflow=false", "evaluate.every_steps=0"]


def script(dataset: Path, run: Path, *settings: str, **changed: str) -> str:
    """The page's, made as small as this machine."""
    (text,) = re.findall(r"^## srun$.*?^```\n(#!/bin/bash\n.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    smaller = {
        "--nodes 4 --ntasks-per-node 8 --gpus-per-node 8": "--nodes 2 --ntasks-per-node 2 --gpus-per-node 2",
        "gpt3/1.3b": "debug/gpt",
        "data.path=/shared/datasets/corpus": f"data.path={dataset}",
        "run.dir=/shared/runs/gpt3-1.3b": f"run.dir={run}",
        "precision=bf16 parallel.tensor=8": " ".join((*SETTINGS, *settings)),
        **changed,
    }
    for there, here in smaller.items():
        assert text.count(there) == 1, f"the page's script has no '{there}' any more"
        text = text.replace(there, here)
    return text


def test_the_page_s_script_trains_to_the_end_as_local_ranks_do(cluster: Slurm, dataset: Path, tmp_path: Path) -> None:
    run, local = tmp_path / "run", tmp_path / "local"
    job = cluster.submit(script(dataset, run, "train.steps=12"))
    cluster.wait(job, "COMPLETED", timeout_s=900)
    settings = [f"data.path={dataset}", f"run.dir={local}", *SETTINGS, "train.steps=12"]
    done = command.run("train", "debug/gpt", *settings, "--nproc", "4", timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert len(metrics(run)) == 12
    for key in ("step", "loss", "grad_norm", "data_hash", "tokens", "learning_rate"):
        assert [line[key] for line in metrics(run)] == [line[key] for line in metrics(local)], key


def test_before_its_time_limit_a_job_saves_and_the_next_one_goes_on(
    cluster: Slurm, dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    text = script(dataset, run, "train.steps=100000", **{"--signal TERM@300": "--signal TERM@90 --time 3"})
    first = cluster.submit(text)
    assert cluster.wait(first, timeout_s=300) == "FAILED", "which is what Slurm calls status 75"
    assert cluster.job(first)["ExitCode"] == "75:0", cluster.said(first)
    stopped = metrics(run)[-1]["step"]
    assert json.loads((run / "events.jsonl").read_text().splitlines()[-1])["event"] == "stopped"
    assert sorted(path.name for path in (run / "checkpoints").iterdir())[-1:] == [f"step-{stopped:08d}"]
    second = cluster.submit(text)
    wait_for_steps(cluster, second, run, stopped + 1)
    (resumed,) = [line for line in map(json.loads, (run / "events.jsonl").open()) if line["event"] == "resumed"]
    assert resumed["step"] == stopped
    assert [line["step"] for line in metrics(run)][:stopped] == list(range(1, stopped + 1))
