"""`pretrain compare` on real runs, and `pretrain verify` as a user calls it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pretrain.__main__ import main
from tests.end_to_end.conftest import write_config
from tests.helpers.command import run

Capture = pytest.CaptureFixture[str]


def _train(dataset: Path, directory: Path, *settings: str) -> Path:
    directory.mkdir()
    done = run("train", write_config(dataset, directory), *settings)
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture(scope="module")
def runs(dataset: Path, uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same run on one rank, again, and on tensor 2; and one that is another."""
    base = tmp_path_factory.mktemp("runs")
    return {
        "one rank": _train(dataset, base / "one"),
        "again": _train(dataset, base / "again"),
        "tensor 2": uninterrupted,
        "faster": _train(dataset, base / "faster", "optimizer.learning_rate=2.2e-3"),
    }


def _lines(path: Path) -> dict[str, dict[str, Any]]:
    return {line["quantity"]: line for line in json.loads(path.read_text())["quantities"]}


@dataclass(frozen=True)
class Done:
    status: int
    stdout: str
    stderr: str


def _compare(capsys: Capture, *arguments: object) -> Done:
    """The command, without the seconds that a process takes to start."""
    return Done(main(["compare", *map(str, arguments)]), *capsys.readouterr())


def test_the_same_run_on_another_layout_is_the_same_run(runs: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    done = _compare(capsys, runs["one rank"], runs["tensor 2"], "--out", tmp_path / "found.json")
    assert done.status == 0, done.stdout + done.stderr
    assert "tp2" in done.stdout
    assert done.stdout.endswith("the same run\n")
    found = _lines(tmp_path / "found.json")
    assert [found[name]["compared"] for name in ("samples", "loss", "weights")] == [24, 24, 2]
    assert all(line["departs_first"] is None for line in found.values())
    assert [found[name]["largest"]["by"] for name in ("steps", "samples", "tokens", "learning rate")] == [0] * 4
    assert 0 < found["weights"]["largest"]["by"] < 1e-3


def test_a_rerun_on_the_same_layout_is_equal_to_the_last_bit(
    runs: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    done = _compare(capsys, runs["one rank"], runs["again"], "--out", tmp_path / "found.json")
    assert done.status == 0, done.stdout + done.stderr
    assert all(line["largest"]["by"] == 0 for line in _lines(tmp_path / "found.json").values())


def test_another_run_is_told_by_its_config_its_losses_and_its_weights(
    runs: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    done = _compare(capsys, runs["one rank"], runs["faster"], "--out", tmp_path / "found.json")
    assert done.status == 1, done.stdout + done.stderr
    assert "optimizer.learning_rate is 0.002 and 0.0022" in done.stdout
    found = _lines(tmp_path / "found.json")
    assert found["samples"]["departs_first"] is None
    assert found["learning rate"]["departs_first"]["step"] == 1
    assert found["loss"]["departs_first"]["step"] == 2, "the first loss is that of the initial weights"
    assert found["weights"]["departs_first"]["step"] == 16, "of the first checkpoint that both have"


@pytest.mark.parametrize(
    ("key", "value", "quantity", "how"),
    [
        ("data_hash", "0" * 16, "samples", "differ for the first time"),
        ("loss", 3.0, "loss", "differ by"),
        ("loss", None, "loss", "differ by inf"),
    ],
)
def test_the_first_step_that_departs_is_named(
    key: str, value: Any, quantity: str, how: str, runs: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(runs["one rank"], tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines[10:]:
        line[key] = value
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = _compare(capsys, runs["one rank"], tmp_path / "run")
    assert done.status == 1, done.stdout + done.stderr
    assert f"step 11: {quantity} {how}" in done.stdout


def test_steps_that_one_run_lacks_and_weights_that_were_not_compared_are_said(
    runs: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(runs["one rank"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:20]))
    done = _compare(capsys, runs["one rank"], tmp_path / "run")
    assert done.status == 0, "it has not come as far, and that is all"
    assert "steps 1 to 20" in done.stdout
    assert "the same run for the 20 of 24 steps that both have" in done.stdout
    assert "not compared: the runs have no checkpoint of the same step" in done.stdout
    metrics.write_text("".join(lines[:12] + lines[15:]))
    done = _compare(capsys, runs["one rank"], tmp_path / "run")
    assert done.status == 1
    assert "step 13: steps differ for the first time" in done.stdout


def test_a_damaged_checkpoint_and_what_is_no_run_are_one_sentence(
    runs: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(runs["one rank"], tmp_path / "run")
    (tensors,) = (tmp_path / "run" / "checkpoints" / "step-00000024").glob("*.safetensors")
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    done = _compare(capsys, runs["one rank"], tmp_path / "run")
    assert done.status == 1
    assert "has changed since it was written" in done.stderr
    assert "Traceback" not in done.stderr
    done = _compare(capsys, runs["one rank"], tmp_path)
    assert (done.status, done.stderr) == (2, f"pretrain: {tmp_path} is not a run: it has no config.yaml\n")


@pytest.mark.slow
def test_verify_writes_its_table_and_verify_json(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "verify.json"
    done = run("verify", config, "--layouts", "tp2+sp,dp2", "--steps", "2", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same run\n") == 3
    report = json.loads(out.read_text())
    assert report["same"] is True
    assert [row["layout"] for row in report["layouts"]] == ["tp1pp1dp1", "tp2pp1dp1+sp", "tp1pp1dp2+zero1"]
    assert not (tmp_path / "run").exists(), "verify leaves the run alone"


def test_verify_refuses_a_layout_that_cannot_be(config: Path) -> None:
    done = run("verify", config, "--layouts", "tp2,dp4+zero4")
    assert done.returncode == 2
    assert "dp4+zero4" in done.stderr
    assert "parallel.zero" in done.stderr


def test_verify_refuses_moments_that_round_more_than_layouts_do(config: Path) -> None:
    done = run("verify", config, "--layouts", "tp2", "optimizer.moments=bf16")
    assert done.returncode == 2
    assert "verify the run with optimizer.moments=fp32" in done.stderr
