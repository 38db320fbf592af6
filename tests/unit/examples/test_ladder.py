"""`make ladder` goes on only with what it would have begun."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples import ladder


def test_a_ladder_of_another_rule_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []
    monkeypatch.setattr(ladder, "_run", lambda *arguments, **_: run.append(arguments[1]))
    monkeypatch.setattr(ladder, "_train_all", lambda commands: run.append("train"))
    plan = replace(ladder.TINY, folder=tmp_path / "ladder", data=tmp_path)
    (plan.folder / "plan").mkdir(parents=True)
    (plan.folder / "plan" / "ladder.json").write_text(json.dumps({"rule": "olmo", "runs": []}))
    with pytest.raises(SystemExit, match="was begun with --rule olmo, not constant: move it elsewhere"):
        ladder.main(plan)
    assert run == []
