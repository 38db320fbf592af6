"""Jobs that are signalled to stop: all ranks save and exit together with status 75, and the next job resumes."""

import json
import re
from pathlib import Path

import pytest

from tests.cluster.conftest import wait_for_steps
from tests.end_to_end.test_train import metrics
from tests.helpers import command
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
SCRIPT = """#!/bin/bash
#SBATCH --nodes 2 --ntasks-per-node 2 --gpus-per-node 2
#SBATCH {options}
srun {srun} pretrain train {config} parallel.tensor=2
echo srun ended with $?
"""


def assert_stopped(cluster: Slurm, job: int, run: Path) -> int:
    """Asserts that every rank ended with status 75 after a save. Returns the step."""
    said = cluster.output(job)
    assert said.rstrip().endswith("srun ended with 75"), said
    ranks = re.findall(r"srun: error: n[01]: tasks? ([0-9,-]+): Exited with exit code 75", said)
    assert sorted(ranks) in (["0-1", "2-3"], ["0", "1", "2", "3"]) or sum(map(_count, ranks)) == 4, said
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "stopped"
    step = metrics(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{step:08d}").is_dir()
    return step


def _count(ranks: str) -> int:
    first, _, last = ranks.partition("-")
    return int(last or first) - int(first) + 1 if "," not in ranks else sum(map(_count, ranks.split(",")))


def test_stopped_twice_and_gone_on_with_it_is_the_same_run(cluster: Slurm, config: Path, tmp_path: Path) -> None:
    run, whole = config.parent / "run", tmp_path / "whole"
    length = ["train.steps=200", "checkpoint.every_steps=0", "evaluate.every_steps=0"]
    settings = " ".join(map(str, (config, *length)))
    stopped_at = 0
    for kill in (1, 0):
        script = SCRIPT.format(options="--time 60", srun=f"--kill-on-bad-exit={kill}", config=settings)
        job = cluster.submit(script)
        wait_for_steps(cluster, job, run, stopped_at + 3)
        cluster.send(job, "TERM")
        cluster.wait(job)
        stopped_at = assert_stopped(cluster, job, run)
    assert stopped_at < 200
    job = cluster.submit(SCRIPT.format(options="--time 60", srun="", config=settings))
    cluster.wait(job, "COMPLETED", timeout_s=900)
    done = command.run("train", config, *length, "parallel.tensor=2", f"run.dir={whole}", "--nproc", "4", timeout_s=900)
    assert done.returncode == 0, done.stderr
    for key in ("step", "loss", "grad_norm", "data_hash"):
        assert [line[key] for line in metrics(run)] == [line[key] for line in metrics(whole)], key
