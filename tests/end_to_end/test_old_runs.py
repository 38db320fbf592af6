"""Runs that an earlier version began (old_runs/VERSION, made by old_runs_record.py) go on with today's code as they
would have with that version's, and can be scored, exported and looked up."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from tests.end_to_end.old_runs_record import FOLDER, RANKS, config, heldout_loss, metrics, record
from tests.helpers import command
from tests.helpers.machine import processor

TOLERANCE = 1e-5
"""of sums in another order: the processor that recorded them, and the code of that version, are not here any more"""


@dataclass(frozen=True)
class OldRun:
    name: str
    """of the run and, as its config's paths are relative, its directory"""
    expected: dict[str, Any]
    """of each step after it was stopped, by the version that began it"""

    @property
    def directory(self) -> Path:
        return Path(self.name)


@pytest.fixture(params=[f"{folder.name}/{run}" for folder in sorted(FOLDER.iterdir()) for run in RANKS])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OldRun:
    """A copy of the run and its dataset, in whose folder the test is."""
    version, name = request.param.split("/")
    shutil.copytree(FOLDER / version, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    recorded = json.loads(Path("continued.json").read_text())
    return OldRun(name, recorded["runs"][name])


def _run(*arguments: object) -> str:
    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _go_on(old: OldRun, *more: object) -> dict[str, list[Any]]:
    """By key, the values of each step that it goes on for."""
    before = metrics(old.directory)
    _run("train", old.directory / "config.yaml", *more)
    lines = metrics(old.directory)
    assert lines[: len(before)] == before, "steps already made stay on record"
    events = [json.loads(line) for line in (old.directory / "events.jsonl").read_text().splitlines()]
    assert next(event["step"] for event in events if event["event"] == "resumed") == len(before)
    assert events[-1]["event"] == "finished"
    return {key: [line[key] for line in lines[len(before) :]] for key in lines[0]}


def test_it_goes_on_as_that_version_would_have(old: OldRun) -> None:
    found = _go_on(old, "--nproc", RANKS[old.name])
    for key in ("step", "learning_rate", "tokens", "data_hash"):
        assert found[key] == old.expected[key], key
    for key in ("loss", "grad_norm"):
        assert found[key] == pytest.approx(old.expected[key], abs=TOLERANCE), key


def test_it_goes_on_on_one_rank(old: OldRun) -> None:
    found = _go_on(old, "parallel={}")
    assert found["data_hash"] == old.expected["data_hash"]
    assert found["loss"] == pytest.approx(old.expected["loss"], abs=TOLERANCE)


def test_its_checkpoint_has_the_same_held_out_loss(old: OldRun) -> None:
    assert heldout_loss(old.name, Path("report")) == pytest.approx(old.expected["heldout_before"], abs=TOLERANCE)


def test_its_checkpoint_is_exported(old: OldRun) -> None:
    assert "largest logit difference" in _run("export", old.directory, "--to", "hf", "hf")
    assert {"config.json", "model.safetensors"} <= {path.name for path in Path("hf").iterdir()}


def test_its_ledger_is_what_was_planned_and_read(old: OldRun) -> None:
    ledger = json.loads(_run("data", "ledger", old.directory, "--json"))
    lines = metrics(old.directory)
    assert (ledger["step"], ledger["steps"]) == (len(lines), old.expected["step"][-1])
    assert (ledger["tokens"], ledger["end_tokens"]) == (lines[-1]["tokens"], old.expected["tokens"][-1])
    assert ledger["realised"][0]["samples"] == lines[-1]["samples"]
    planned = (json.loads(line) for line in (old.directory / "events.jsonl").read_text().splitlines())
    assert ledger["planned"] == next(event["sources"] for event in planned if event["event"] == "planned")


@pytest.mark.parametrize("name", RANKS)
def test_what_the_next_version_records_is_a_config(name: str) -> None:
    path, *overrides = config(name)
    load(RunConfig, path, overrides)


@pytest.mark.slow
def test_the_next_version_can_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # and back again
    record(tmp_path / "next")
    recorded = json.loads((tmp_path / "next" / "continued.json").read_text())
    assert recorded["machine"] == processor()
    for name in RANKS:
        stopped_at = len(metrics(tmp_path / "next" / name))
        assert 4 <= stopped_at < 12
        assert recorded["runs"][name]["step"] == list(range(stopped_at + 1, 13))
