"""What of a config only its data and its length can tell: the same data twice, a decay that does not fit."""

from pathlib import Path
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.data.doubtful_settings import doubtful_settings
from pretrain.data.resolve import resolve
from pretrain.errors import ConfigError
from tests.helpers.small_configs import config


def run(**sections: Any) -> RunConfig:
    return config(**{"train": {"steps": 100}, "optimizer": {"learning_rate": 1e-3}, **sections})


@pytest.mark.parametrize("second", ["a", "./a", "link", "LOCAL/a"])
def test_a_dataset_is_named_once(second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    twice = [{"path": "a"}, {"path": second.replace("LOCAL", f"file://{tmp_path}")}]
    with pytest.raises(ConfigError, match="twice"):
        resolve(run(data={"sources": twice}))


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (
            {"name": "wsd", "decay_steps": 101},
            "schedule.decay_steps=101 does not fit into the run, which ends after 100",
        ),
        ({"name": "wsd", "warmup_steps": 60, "decay_steps": 50}, "does not fit"),
        ({"name": "power", "amplitude": 1.0, "warmup_steps": 60, "decay_steps": 50}, "does not fit"),
        ({"name": "cosine", "warmup_steps": 20, "decay_steps": 20}, "ends within the warm-up of 20"),
    ],
)
def test_a_decay_that_no_run_of_this_length_has_is_refused(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(run(schedule=schedule))


def test_settings_that_the_run_ends_before_are_said() -> None:
    long = {"name": "linear", "decay_steps": 200, "final_fraction": 0.0}
    (note,) = doubtful_settings(run(schedule=long))
    assert "schedule.decay_steps=200 is longer than the run" in note
    assert "ends at 50% of its peak" in note
    (note,) = doubtful_settings(run(health={"hang_s": 400, "timeout_s": 600}))
    assert "health.hang_s=400 is more than half of health.timeout_s=600 and is reduced to 300" in note
    assert doubtful_settings(run()) == doubtful_settings(run(health={"timeout_s": 60})) == ()
    assert doubtful_settings(run(schedule={**long, "decay_steps": 100, "final_fraction": 0.01})) == ()


@pytest.mark.parametrize(
    ("schedule", "when"),
    [
        ({"name": "linear", "decay_steps": 100}, "in the last step"),
        ({"name": "cosine"}, "in the last step"),
        ({"name": "cosine", "decay_steps": 90}, "from 90 of 100 steps on"),
        ({"name": "wsd", "decay_steps": 20, "decay_type": "1-sqrt"}, "in the last step"),
        ({"name": "power", "amplitude": 1.0, "decay_steps": 20}, "in the last step"),
    ],
)
def test_steps_at_a_rate_of_zero_are_said(schedule: dict[str, Any], when: str) -> None:
    (note,) = doubtful_settings(run(schedule={**schedule, "final_fraction": 0}))
    assert f"schedule.final_fraction=0 makes the learning rate 0 {when}, where nothing is trained" in note
    assert doubtful_settings(run(schedule={**schedule, "final_fraction": 0.01})) == ()
