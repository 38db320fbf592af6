"""`make ladder` resumes only an experiment with the same settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples import ladder


def test_a_ladder_with_another_rule_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []
    monkeypatch.setattr(ladder, "_run", lambda *arguments, **_: run.append(arguments[1]))
    monkeypatch.setattr(ladder, "_train_all", lambda commands: run.append("train"))
    experiment = replace(ladder.TINY, folder=tmp_path / "ladder", data=tmp_path)
    (experiment.folder / "plan").mkdir(parents=True)
    (experiment.folder / "plan" / "ladder.json").write_text(json.dumps({"rule": "olmo", "runs": []}))
    with pytest.raises(SystemExit, match="was started with --rule olmo, not constant: move that folder away"):
        ladder.main(experiment)
    assert run == []
