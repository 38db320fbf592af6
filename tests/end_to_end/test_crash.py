"""The crash campaigns: real commands killed with SIGKILL at random moments, counted in the terminal summary.
Hundreds of kills: `python -m tests.benchmarks.crashes`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import crash_build, crash_train
from tests.helpers.breadth import slow
from tests.helpers.crash import table

pytestmark = pytest.mark.timeout(3600)  # the campaigns notice what hangs by themselves


@pytest.mark.parametrize(
    ("kind", "kills", "seed"),
    [
        ("gpt", 3, 34),  # on four layouts, none of which imports DeepSpeed
        slow(("electra", 1, 115)),  # on a pipeline, and then on tensor ranks
        *map(slow, [("gpt", 60, 1), *((kind, 12, 1) for kind in crash_train.KINDS if kind != "gpt")]),
        *map(slow, [(kind, 6 if kind == "experts" else 4, 1) for kind in crash_train.LATER_KINDS]),
    ],
)
def test_training_killed_at_random_moments_is_the_uninterrupted_run(
    kind: str, kills: int, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done = crash_train.train_campaign(tmp_path, kills, seed, kind)
    record_property("summary", f"kills of training, {kind}:\n{table(done, crash_train.PHASES)}")
    if kills >= 60:
        assert {kill.phase for kill in done} == set(crash_train.PHASES)
        assert {kill.layout for kill in done} == set(crash_train.LAYOUTS)


@pytest.mark.parametrize("kills", [6, slow(30)])
def test_building_killed_at_random_moments_gives_the_uninterrupted_dataset(
    kills: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done = crash_build.build_campaign(tmp_path, kills, seed=1)
    record_property("summary", f"kills of data build:\n{table(done, crash_build.PHASES)}")
    assert "writing shards" in {kill.phase for kill in done}
