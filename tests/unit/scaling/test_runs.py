"""Runs on the disk -> points, and which of them cannot be compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.load import dump
from pretrain.errors import ConfigError
from pretrain.model_spec.flops import training_flops_per_token
from pretrain.scaling.runs import points_of, read_points, read_runs
from pretrain.scaling.size import parameters_at_work
from tests.helpers.tiny import tiny_config


def finished(directory: Path, loss: float | None = 3.0, step: int = 100, **sections: Any) -> Path:
    config = tiny_config(data={"path": "datasets/book"}, **{"run": {"dir": str(directory), "name": "a"}} | sections)
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(dump(config))
    heldout = {"event": "heldout", "step": 100, "tokens": 25600, "loss": loss, "predicted_tokens": 8192}
    events = [{"event": "heldout", "step": 50, "tokens": 12800, "loss": 4.0, "predicted_tokens": 8192}, heldout]
    events.append({"event": "finished", "step": step, "tokens": 25600})
    (directory / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return directory


def test_a_run_is_a_point_and_a_folder_several(tmp_path: Path) -> None:
    finished(tmp_path / "ladder" / "a")
    finished(tmp_path / "ladder" / "b", loss=2.9, optimizer={"learning_rate": 5e-4})
    a, b = points_of(read_runs([tmp_path / "ladder"])).runs
    model = tiny_config().model
    assert (a.loss, b.loss, a.tokens) == (3.0, 2.9, 25600)
    assert a.parameters == parameters_at_work(model)
    assert a.flops == pytest.approx(training_flops_per_token(model) * 25600)
    assert (a.learning_rate, b.learning_rate) == (1e-3, 5e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": 50}, "has not finished"),
        ({"loss": None}, "diverged: its held-out loss is no finite number"),
        ({"loss": 5.6}, "diverged: its held-out loss is 5.600, and guessing has 5.521"),
    ],
)
def test_a_run_that_has_not_come_to_a_loss_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read_runs([finished(tmp_path / "a", **changes)])


def test_runs_that_differ_in_data_are_refused_with_both_and_what_differs(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    finished(tmp_path / "b", model={"vocabulary": 300})
    with pytest.raises(ConfigError, match=r"/a and .*/b differ in model\.vocabulary \(250 and 300\)"):
        read_runs([tmp_path])
    with pytest.raises(ConfigError, match="is neither a run nor a folder of runs"):
        read_runs([tmp_path / "nowhere"])


def test_points_come_from_one_csv_or_from_runs_and_may_be_left_out(tmp_path: Path) -> None:
    run, table = finished(tmp_path / "a"), tmp_path / "runs.csv"
    table.write_text("N,D,loss\n1e6,2e7,3.0\n1e6,1e7,3.5\n2e6,4e7,2.5\n")
    runs, points = read_points([run])
    assert [one.directory for one in runs] == [run]
    assert points.runs == (runs[0].point,)
    assert read_points([table])[0] == []
    assert [point.loss for point in read_points([table])[1].runs] == [3.5, 3.0, 2.5]
    assert [point.loss for point in read_points([table], least_ratio=20)[1].runs] == [3.0, 2.5]
    assert [point.loss for point in read_points([table], least_ratio=20, drop_highest=1)[1].runs] == [2.5]
    with pytest.raises(ConfigError, match="takes one CSV, or runs"):
        read_points([table, run])


def test_a_law_is_of_one_mixture_of_experts(tmp_path: Path) -> None:
    mixture = {"family": "llama", "norm_type": "rms", "bias": False, "positions": "rotary", "activation": "gated_silu"}
    for name, top_k in (("a", 2), ("b", 1)):
        finished(tmp_path / name, model=mixture | {"experts": {"count": 4, "top_k": top_k}})
    with pytest.raises(ConfigError, match=r"'top_k': 2.* and .*'top_k': 1.*, so that no law holds for both: leave one"):
        read_runs([tmp_path])
