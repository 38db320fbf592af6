"""`run.branch_from`: a run that takes up another's checkpoint goes on as that one did, or as it is told to."""

import json
from pathlib import Path
from typing import Any

from tests.helpers import command

STEM = (
    "schedule={name: wsd, warmup_steps: 2, decay_steps: 2}",
    "train.steps=10",
    "checkpoint={every_steps: 4, keep: 9}",
)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_branch_goes_on_as_its_stem_and_decays_where_it_is_told_to(config: Path, tmp_path: Path) -> None:
    stem, branch = config.parent / "run", tmp_path / "branch"
    taken = f"run.branch_from={stem}/checkpoints/step-00000004"
    change = "run.change={why: decay, train: {steps: 8}, schedule: {decay_steps: 2}}"
    for arguments in ((), (f"run.dir={branch}", taken, change)):
        done = command.run("train", config, *STEM, *arguments)
        assert done.returncode == 0, done.stderr
    whole, short = (lines(run / "metrics.jsonl") for run in (stem, branch))
    assert [line["step"] for line in short] == [5, 6, 7, 8]
    for key in ("loss", "grad_norm", "learning_rate", "data_hash", "tokens"):
        assert [line[key] for line in short[:2]] == [line[key] for line in whole[4:6]], key
    assert [line["data_hash"] for line in short] == [line["data_hash"] for line in whole[4:8]]
    assert short[-1]["learning_rate"] < short[-2]["learning_rate"] < whole[7]["learning_rate"]
    (event,) = (line for line in lines(branch / "events.jsonl") if line["event"] == "branched")
    assert event["checkpoint"] == f"{stem}/checkpoints/step-00000004"
