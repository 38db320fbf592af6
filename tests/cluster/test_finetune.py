"""Fine-tuning on a real Slurm: a run on labelled rows ends with its report, and is the run of local ranks."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_metrics
from tests.end_to_end.test_finetune import CONFIG, report_of, write_rows
from tests.helpers import command
from tests.helpers.launched import Launched, assert_same, launch
from tests.helpers.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
RESOURCES = ["--nodes", "2", "--ranks-per-node", "1", "--cpus-per-rank", "2", "--partition", "low"]


@pytest.fixture
def start(config: Path) -> Path:
    """A run of two layers."""
    done = command.run("train", config, "train.steps=4", timeout_s=600)
    assert done.returncode == 0, done.stderr
    return config.parent / "run"


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    """A config of a run on labelled rows, in `tmp_path / "tone"`."""
    path, rows = tmp_path / "tone.yaml", write_rows(tmp_path / "rows")
    path.write_text(CONFIG.replace("ROWS", str(rows)).replace("RUN", str(tmp_path / "tone")))
    return path


def answers(run: Path) -> tuple[dict[str, Any], str]:
    predictions = RunDir(run).finetune_report / "predictions-validation.jsonl"
    return report_of(run)["splits"], predictions.read_text()


def test_a_launched_run_ends_with_its_report(cluster: Slurm, start: Path, tone: Path, tmp_path: Path) -> None:
    launched = Launched(
        cluster, tmp_path / "tone", str(tone), f"run.start_from={start}", "parallel.tensor=2", *RESOURCES
    )
    launched.wait()
    local = ["parallel.tensor=2", f"run.dir={tmp_path}/local", "--nproc", "2"]
    done = command.run("finetune", start, tone, *local, timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert_same(launched.run, read_metrics(tmp_path / "local"))
    assert answers(launched.run) == answers(tmp_path / "local")
    assert [attempt["ending"] for attempt in launched.attempts] == ["done"]


def test_an_array_fine_tunes_with_several_seeds(cluster: Slurm, start: Path, tone: Path, tmp_path: Path) -> None:
    runs = {seed: tmp_path / f"seed-{seed}" for seed in (1, 2)}
    lines = (
        ["finetune", str(start), str(tone), "parallel.tensor=2", f"run.seed={seed}", f"run.dir={run}"]
        for seed, run in runs.items()
    )
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("\n".join(map(shlex.join, lines)))
    (job,) = launch(cluster, "--tasks", str(tasks), "--directory", str(tmp_path / "array"), *RESOURCES)
    cluster.wait(job, "COMPLETED", timeout_s=900)
    reports = {seed: report_of(run) for seed, run in runs.items()}
    assert {seed: report["facts"]["seed"] for seed, report in reports.items()} == {1: 1, 2: 2}
    assert all(report["splits"]["validation"]["rows"] == 13 for report in reports.values())
