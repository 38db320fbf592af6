"""A package outside the tree (`package/`) adds a family, an objective, a pattern, a data step, a format, an optimizer,
a tracker and a task. It is installed as any other; no line of the product knows it."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.command import Command
from tests.helpers.datasets import make_documents

ROOT = Path(__file__).parents[2]
BUILD = """
input: in.records
output: data
steps: [{name: shouting, most: 0.3}]
tokenizer: {vocabulary: 300}
validation_fraction: 0.1
"""
RUN = """
run: {name: plugin, dir: run}
train: {steps: 4}
batch: {sequences: 4, micro_sequences: 2}
model:
  family: readout_gpt
  layers: 2
  hidden: 32
  heads: 4
  sequence_length: 32
  vocabulary_multiple: 16
  attention: {pattern: [{name: sinks, window: 8}]}
objective: {name: causal_suffix, context: 4}
data: {path: data}
optimizer: {name: sgd, momentum: 0.8, learning_rate: 0.1, weight_decay: 0.01}
schedule: {warmup_steps: 1}
track: {kind: csv}
"""


def pretrain(plugin: Path, *arguments: object, timeout_s: float = 120) -> SimpleNamespace:
    """`pretrain ARGUMENTS` where the package is installed."""
    environment = {"PYTHONPATH": f"{plugin}:{ROOT}"}
    command = Command(*arguments, environment=environment, first=partial(_install, str(plugin)))
    return SimpleNamespace(returncode=command.wait(timeout_s), stdout=command.stdout, stderr=command.stderr)


def _install(folder: str) -> None:
    sys.path.insert(0, folder)


@pytest.fixture(scope="module")
def workspace(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the package's parts."""
    folder = tmp_path_factory.mktemp("workspace")
    documents = [*make_documents(0, 400), "LOUD " * 40]
    (folder / "in.records").write_text("\n%%\n".join(documents), encoding="utf-8")
    (folder / "build.yaml").write_text(BUILD)
    (folder / "run.yaml").write_text(RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = pretrain(plugin, "data", "build", "build.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        done = pretrain(plugin, "train", "run.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(autouse=True)
def _inside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)


def test_the_step_drops_what_it_should() -> None:
    (step,) = json.loads(Path("data/report.json").read_text())["steps"]
    assert step["dropped"] == {"capitals": 1}


def test_the_tracker_gets_the_run() -> None:
    lines = Path("run.csv").read_text().splitlines()
    assert lines[0] == "start,plugin,tp1pp1dp1+zero1"
    assert "artifact,config.yaml" in lines
    assert [line.split(",")[1] for line in lines if ",loss," in line] == ["1", "2", "3", "4"]
    assert "finish,finished" in lines


@pytest.mark.slow
def test_any_layout_is_the_same_run(plugin: Path) -> None:
    done = pretrain(plugin, "verify", "run.yaml", "--layouts", "tp2pp2", "--steps", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    done = pretrain(
        plugin, "train", "run.yaml", "run.dir=split", "parallel.tensor=2", "parallel.pipeline=2", "--nproc", 4
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [Path(run, "metrics.jsonl").read_text().splitlines() for run in ("run", "split")]
    losses = [[json.loads(line)["loss"] for line in one] for one in lines]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(set(losses[0])) == 4


def test_the_task_is_scored(plugin: Path) -> None:
    done = pretrain(plugin, "eval", "run", "--tasks", "spelling", "--shots", "0,2", "--limit", "4", "--out", "report")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "spelling" in json.loads(Path("report/report.json").read_text())["results"]


def test_keys_lists_its_names_and_settings(plugin: Path) -> None:
    done = pretrain(plugin, "keys", "--json")
    assert done.returncode == 0, done.stderr
    keys = {(key["dotted"], *key["only"]): key for key in json.loads(done.stdout)}
    assert keys["optimizer.momentum", "sgd"]["default"] == 0.9
    assert "readout_gpt" in keys["model.family",]["choices"]
    assert "causal_suffix" in keys["objective.name",]["choices"]
    assert keys["model.attention.pattern[].sinks", "sinks"]["default"] == 4
    assert "steps[].most" in pretrain(plugin, "keys", "--build").stdout


def test_errors_name_its_keys(plugin: Path) -> None:
    done = pretrain(plugin, "train", "run.yaml", "optimizer.momentun=0.5")
    assert (done.returncode, done.stderr) == (
        2, "pretrain: command line: unknown key 'optimizer.momentun': did you mean 'optimizer.momentum'?\n",
    )  # fmt: skip


def test_without_the_package_its_names_are_unknown(monkeypatch: pytest.MonkeyPatch, workspace: Path) -> None:
    done = pretrain(workspace, "train", "run/config.yaml")
    assert done.returncode == 2
    assert "readout_gpt" in done.stderr
