"""Where `pretrain replay` starts, and on which layout a run has made a step."""

import json
from pathlib import Path

import pytest

from pretrain.commands.replay import _checkpoints, _Layouts
from pretrain.errors import ConfigError


def _run(folder: Path, *checkpoints: int) -> Path:
    for step in checkpoints:
        (folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(("step", "first"), [(31, [30, 20, 10]), (30, [20, 10]), (11, [10])])
def test_it_starts_from_the_newest_checkpoint_before_the_step(step: int, first: list[int], tmp_path: Path) -> None:
    found = _checkpoints(_run(tmp_path, 10, 20, 30), step, set(range(1, 35)))
    assert [path.name for path in found] == [f"step-{one:08d}" for one in first]


def test_without_one_it_says_what_can_be_computed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoints lead to steps 11 to 34, and --from-start computes all"):
        _checkpoints(_run(tmp_path, 10, 20), 10, set(range(1, 35)))
    with pytest.raises(ConfigError, match="there is no checkpoint to start from; --from-start computes all"):
        _checkpoints(_run(tmp_path / "other"), 10, set(range(1, 35)))


def test_a_later_start_has_made_steps_again(tmp_path: Path) -> None:
    events = [
        {"event": "started", "layout": "tp1pp1dp4"},
        {"event": "resumed", "step": 20, "continued_on": "tp2pp1dp2"},
        {"event": "saved", "step": 30},
        {"event": "resumed", "step": 10, "continued_on": "tp1pp1dp2"},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    layouts = _Layouts(tmp_path)
    assert [layouts.of(step) for step in (10, 11, 25)] == ["tp1pp1dp4", "tp1pp1dp2", "tp1pp1dp2"]
