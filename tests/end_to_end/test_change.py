"""`run.change`: a run whose settings change partway is the same run on any layout and after any crash."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import command

BEGINS = ("schedule=constant", "train.steps=8")
CHANGE = "run.change={why: more of it, optimizer.learning_rate: 1e-3, batch.sequences: 16, train.steps: 14}"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(*arguments: object) -> str:
    done = command.run("train", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
