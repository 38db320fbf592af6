"""Settings of new runs, and of runs that an earlier version began."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.data.begun import as_begun
from pretrain.run_dir.paths import RECORD, RunDir

MASKED = {"name": "masked", "whole_words": True}


def _config(path: Path, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "run": {"dir": str(path)},
        "train": {"steps": 3},
        "batch": {"sequences": 4},
        "model": {"family": "bert", "layers": 1, "hidden": 8, "heads": 1, "sequence_length": 32},
        "objective": MASKED,
        "optimizer": {"learning_rate": 1},
        "data": {"path": "set"},
    }
    return RunConfig.model_validate({**values, **changes})


def _begin(config: RunConfig, objective: dict[str, Any], sources: list[dict[str, Any]]) -> None:
    checkpoint = RunDir(config.run.dir).checkpoint(2)
    checkpoint.mkdir(parents=True)
    recorded = {"objective": objective, "data": {"sources": sources}}
    (checkpoint / RECORD).write_text(json.dumps({"config": recorded}))


@pytest.mark.parametrize(
    ("recorded", "boundaries"),
    [
        ({}, None),
        ({"boundaries": None}, None),
        ({"boundaries": "unicode"}, "unicode"),
        ({"boundaries": "ascii"}, "ascii"),
    ],
)
def test_a_run_resumes_as_it_was_begun(tmp_path: Path, recorded: dict[str, Any], boundaries: str | None) -> None:
    config = _config(tmp_path)
    assert as_begun(config).objective.boundaries == "unicode"
    _begin(config, MASKED | recorded, [])
    assert as_begun(config).objective.boundaries == boundaries
    run = {"dir": str(tmp_path / "branch"), "branch_from": str(tmp_path)}
    assert as_begun(_config(tmp_path, run=run)).objective.boundaries == boundaries, "of a branch"
    own = _config(tmp_path, objective=MASKED | {"boundaries": "unicode"})
    assert as_begun(own).objective.boundaries == "unicode", "what a user sets stays, and is compared"


def test_objectives_of_sources_are_as_they_were_begun(tmp_path: Path) -> None:
    sources = [{"path": f"data/{name}", "objective": MASKED} for name in "ab"]
    config = _config(tmp_path, data={"sources": sources})
    assert [one.objective.boundaries for one in as_begun(config).data.sources if one.objective] == ["unicode"] * 2
    _begin(config, MASKED, [sources[0] | {"name": "a"}, sources[1] | {"objective": MASKED | {"boundaries": "unicode"}}])
    assert [one.objective.boundaries for one in as_begun(config).data.sources if one.objective] == [None, "unicode"]
