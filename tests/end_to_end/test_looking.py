"""Looking into a run changes none of its numbers."""

from pathlib import Path

import pytest

from pretrain.observe.track import TRACKERS
from pretrain.run_dir.records import read_events, read_metrics
from tests.helpers import command
from tests.unit.observe.test_trackers import Failing, Hanging, curves, need_packages, wandb_records

TIMES = ("step_seconds", "tokens_per_second", "save_seconds", "host_peak_bytes")
SHORT = ("train.steps=8", "evaluate.every_steps=4", "checkpoint.every_steps=4")


def add_bad_trackers() -> None:
    TRACKERS.built_in.update(failing=Failing, hanging=Hanging)  # type: ignore[attr-defined]
    from pretrain.config.track import TRACKER_NAMES

    TRACKER_NAMES.built_in.update(failing="", hanging="")  # type: ignore[attr-defined]


@pytest.fixture
def plain(config: Path) -> Path:
    """The run with nothing on; its directory."""
    run = config.parent / "plain"
    done = command.run("train", config, *SHORT, f"run.dir={run}")
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.slow
def test_every_number_is_the_same_with_all_of_it_on(plain: Path, config: Path) -> None:
    need_packages()
    run = config.parent / "run"
    kinds = "track={kind: [hanging, failing, mlflow, tensorboard, wandb], mlflow: true, offline: true}"
    process = command.Command("train", config, *SHORT, kinds, first=add_bad_trackers)
    assert process.wait(240) == 0, process.printed
    assert [same(line) for line in read_metrics(run)] == [same(line) for line in read_metrics(plain)]
    assert heldout(run) == heldout(plain)
    warnings = [event["text"] for event in read_events(run) if event["event"] == "warning"]
    assert sorted(text.split(" ")[0] for text in warnings) == ["Failing", "Hanging"], warnings
    losses = [line["loss"] for line in read_metrics(run)]
    assert [point.value for point in curves(run).Scalars("loss")] == pytest.approx(losses)
    assert sum(record.WhichOneof("record_type") == "history" for record in wandb_records(run)) >= len(losses)


def same(line: dict[str, object]) -> dict[str, object]:
    """What of a line does not depend on time or on the machine's memory."""
    return {key: value for key, value in line.items() if key not in TIMES}


def heldout(run: Path) -> list[float]:
    return [event["loss"] for event in read_events(run) if event["event"] == "heldout"]
