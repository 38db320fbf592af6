"""`run.change`: a run whose settings change partway is the same run on any layout and after any crash."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.checkpoint import files, store
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers import command

BEGINS = ("schedule=constant", "train.steps=8")
CHANGE = "run.change={why: more of it, optimizer.learning_rate: 1e-3, batch.sequences: 16, train.steps: 14}"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(*arguments: object) -> str:
    done = command.run("train", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_killed_after_the_change_and_started_plainly_on_another_layout_it_is_the_same_run(
    config: Path, tmp_path: Path
) -> None:
    calm, run = tmp_path / "calm", config.parent / "run"
    train(config, *BEGINS, f"run.dir={calm}")
    said = train(config, *BEGINS, f"run.dir={calm}", CHANGE)
    assert "changed at step 8, more of it: optimizer.learning_rate from 0.002 to 0.001; batch.seq" in said
    train(config, *BEGINS, "parallel.tensor=2", "--nproc", "2")
    process = command.Command("train", config, *BEGINS, "parallel.tensor=2", "--nproc", "2", CHANGE)
    deadline = time.monotonic() + 60
    while len((run / "metrics.jsonl").read_bytes().splitlines()) < 10:
        assert process.poll() is None, process.printed
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert [path.name for path in (run / "checkpoints").glob("step-????????")] == ["step-00000008"]
    train(config, *BEGINS)  # without the change, on one rank
    found, wanted = lines(run / "metrics.jsonl"), lines(calm / "metrics.jsonl")
    for key in ("step", "data_hash", "tokens", "samples", "learning_rate"):
        assert [line[key] for line in found] == [line[key] for line in wanted], key
    assert [line["step"] for line in found] == list(range(1, 15))
    assert [line["learning_rate"] for line in found[-7:]] == [2e-3, *[1e-3] * 6]
    assert np.diff([line["samples"] for line in found]).tolist() == [8] * 7 + [16] * 6
    np.testing.assert_allclose([line["loss"] for line in found], [line["loss"] for line in wanted], atol=1e-5)
    for directory in (calm, run):
        (event,) = (line for line in lines(directory / "events.jsonl") if line["event"] == "changed")
        assert (event["step"], event["why"]) == (8, "more of it")
        assert event["settings"]["optimizer.learning_rate"] == {"from": 2e-3, "to": 1e-3}
    ledger = json.loads(command.run("data", "ledger", run, "--json").stdout)
    assert ledger["realised"] == ledger["planned"]
    assert ledger["changes"] == [{"why": "more of it", "step": 8, "settings": event["settings"]}]


MIXED = (
    "model={family: llama, layers: 2, hidden: 32, heads: 2, sequence_length: 32, norm_type: rms, bias: false,"
    " activation: gated_silu, ffn: 48, positions: rotary, attention: {},"
    " mtp: {num_layers: 1, loss_scaling_factor: 0.3},"
    " experts: {count: 4, top_k: 2, scores: sigmoid, selection_bias: true, bias_rate: 0.001}}"
)
CALMED = (
    "run.change={why: DeepSeek-V3, model.mtp.loss_scaling_factor: 0.1, model.experts.bias_rate: 0, train.steps: 12}"
)


def _biases(run: Path) -> dict[str, list[float]]:
    """Biases of routers in the newest checkpoint."""
    newest = complete_checkpoints(run / "checkpoints")[-1]
    manifest = files.Manifest.read(newest)
    names = [name for name in manifest.tensors if name.endswith(".router.bias")]
    return {name: store.read_full_tensor(newest, manifest, name).tolist() for name in names}


@pytest.mark.slow
def test_weights_of_further_tokens_and_rates_of_biases_change_from_their_step_on(config: Path) -> None:
    run = config.parent / "run"
    train(config, *BEGINS, MIXED)
    biases = _biases(run)
    assert len(biases) == 3
    assert all(any(values) for values in biases.values())
    said = train(config, *BEGINS, MIXED, CALMED, "parallel.expert=2", "--nproc", "2")
    assert "model.mtp.loss_scaling_factor from 0.3 to 0.1; model.experts.bias_rate from 0.001 to 0.0" in said
    train(config, *BEGINS, MIXED, "checkpoint.every_steps=2")  # the run is finished, and remains as it is
    assert _biases(run) == biases
    found = lines(run / "metrics.jsonl")
    assert [line["step"] for line in found] == list(range(1, 13))
    for line in found:
        weight = 0.3 if line["step"] <= 8 else 0.1
        assert line["loss"] == pytest.approx(line["loss_tokens"] + weight * line["loss_mtp_1"], abs=1e-6), line["step"]
