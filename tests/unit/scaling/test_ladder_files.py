"""Files of a ladder: configs that load, task files of commands, and what is refused before anything is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.scaling.ladder import LadderSpec
from pretrain.scaling.ladder_files import write_ladder
from tests.helpers.tiny import tiny_config


def write(out: Path, budget: float | None = None, **changes: Any) -> tuple[Path, ...]:
    values = {"sizes": (1e5, 2e5), "ratios": (20, 40), "seeds": (1,), "rule": "olmo", "runs_dir": "/runs"} | changes
    return write_ladder(tiny_config(), LadderSpec(**values), out, budget=budget, command="made by hand").task_files


def test_task_files_train_every_config_stems_first(tmp_path: Path) -> None:
    stems, branches = write(tmp_path)
    runs = json.loads((tmp_path / "ladder.json").read_text())["runs"]
    for run in runs:
        config = load(RunConfig, run["config"])
        assert (config.run.dir, config.train.steps) == (run["run_dir"], run["steps"])
        assert "# Written by: made by hand\n" in Path(run["config"]).read_text()
    for path, is_stem in ((stems, True), (branches, False)):
        configs = [run["config"] for run in runs if (run["stem"] is None) == is_stem]
        assert path.read_text().splitlines() == [f"pretrain train {config}" for config in configs]


def test_the_task_file_of_an_earlier_ladder_with_branches_is_removed(tmp_path: Path) -> None:
    assert [path.name for path in write(tmp_path)] == ["stems.txt", "branches.txt"]
    assert [path.name for path in write(tmp_path, ratios=(20,))] == ["stems.txt"]
    assert not (tmp_path / "branches.txt").exists()


@pytest.mark.parametrize("changes", [{"budget": 1e6}, {"sizes": (1e300,)}, {"rates": (1.0, 1.0)}])
def test_nothing_is_written_of_a_ladder_that_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--budget|--sizes|one name"):
        write(tmp_path / "ladder", **changes)
    assert not (tmp_path / "ladder").exists()
