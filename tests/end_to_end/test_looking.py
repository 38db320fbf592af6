"""Looking into a run changes none of its numbers."""

import gzip
import json
from pathlib import Path

import pytest

from pretrain.observe.step_trace import load_trace, split_of
from pretrain.observe.track import TRACKERS
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_events, read_metrics
from tests.end_to_end.test_finetune import CONFIG as TONE
from tests.end_to_end.test_finetune import write_rows
from tests.helpers import command
from tests.unit.observe.test_trackers import Failing, Hanging, curves, history, need_packages, wandb_records

TIMES = ("step_seconds", "tokens_per_second", "save_seconds", "host_peak_bytes")
PROFILED = ("profile={steps: [2, 5], ranks: [0]}",)
NORMS = "layer_"
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
    kinds = (
        "track={kind: [hanging, failing, mlflow, tensorboard, wandb], mlflow: true, offline: true, "
        "norms_every_steps: 4, activations_every_steps: 4}"
    )
    process = command.Command("train", config, *SHORT, kinds, *PROFILED, first=add_bad_trackers)
    assert process.wait(240) == 0, process.printed
    assert [same(line) for line in read_metrics(run)] == [same(line) for line in read_metrics(plain)]
    assert heldout(run) == heldout(plain)
    warnings = [event["text"] for event in read_events(run) if event["event"] == "warning"]
    assert sorted(text.split(" ")[0] for text in warnings) == ["Failing", "Hanging"], warnings
    assert len(list((run / "profile").iterdir())) == 2
    measured = [line["step"] for line in read_metrics(run) if "layer_grad_norm/decoder.layers.1" in line]
    assert measured == [4, 8]
    assert measured == [line["step"] for line in read_metrics(run) if "layer_output_max/decoder.layers.1" in line]
    assert [point.step for point in curves(run).Scalars("layer_weight_norm/decoder.layers.0")] == measured
    losses = [line["loss"] for line in read_metrics(run)]
    assert [point.value for point in curves(run).Scalars("loss")] == pytest.approx(losses)
    assert sum(record.WhichOneof("record_type") == "history" for record in wandb_records(run)) >= len(losses)


LAYOUTS = {
    "tensor": ("parallel.tensor=2", "parallel.sequence=true"),
    "pipeline": ("parallel.pipeline=2",),
    "zero1": (),
    "deepspeed": ("parallel.zero=3", "parallel.zero_engine=deepspeed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_profile_of_any_layout_has_its_phases_modules_and_exchanges(config: Path, layout: str) -> None:
    runs = config.parent / "with", config.parent / "without"
    short = ("train.steps=3", "evaluate.every_steps=0", "checkpoint.every_steps=3", "schedule.warmup_tokens=256")
    for run, profiled in zip(runs, (("profile={steps: [2], ranks: [0, 1]}",), ()), strict=True):
        done = command.run("train", config, *short, *LAYOUTS[layout], f"run.dir={run}", *profiled, "--nproc", 2)
        assert done.returncode == 0, done.stderr
    lines = [[same(line) for line in read_metrics(run)] for run in runs]
    assert lines[0] == lines[1]
    for rank in (0, 1):
        with gzip.open(RunDir(runs[0]).trace(2, rank), "rt") as file:
            trace = json.load(file)
        ranges = {one["name"] for one in trace["traceEvents"] if one.get("cat") == "user_annotation"}
        assert {"step 2", "step/data", "step/forward", "step/backward", "step/exchange", "step/optimizer"} <= ranges
        assert ("step/pipeline" in ranges) == (layout == "pipeline")
        assert any(name.endswith("self_attention.core_attention") for name in ranges), ranges
        group = {"tensor": "tensor", "pipeline": "embedding"}.get(layout, "data")
        assert f"exchange/{group}" in ranges
        split = split_of(load_trace(RunDir(runs[0]).trace(2, rank)))
        (step,) = [one for one in trace["traceEvents"] if one["name"] == "step 2" and "tid" in one]
        assert split.total == pytest.approx(step["dur"] / 1e6)
        assert split.seconds["matrix products"] > 0
        assert split.seconds["attention"] > 0
    printed = command.run("profile", runs[0], "--hardware", "h100")
    assert (printed.returncode, "planned, h100" in printed.stdout) == (0, True), printed.stderr


def same(line: dict[str, object]) -> dict[str, object]:
    """What of a line does not depend on time or on the machine's memory."""
    return {key: value for key, value in line.items() if key not in TIMES and not key.startswith(NORMS)}


def heldout(run: Path) -> list[float]:
    return [event["loss"] for event in read_events(run) if event["event"] == "heldout"]


ALL = "track={kind: [mlflow, tensorboard, wandb], mlflow: true, offline: true}"


@pytest.mark.slow
def test_scores_of_eval_and_of_a_fine_tuned_model_reach_every_tracker(config: Path, tmp_path: Path) -> None:
    need_packages()
    run, tuned = tmp_path / "run", tmp_path / "tone"
    rows = write_rows(tmp_path / "rows")
    (tmp_path / "tone.yaml").write_text(TONE.replace("ROWS", str(rows)).replace("RUN", str(tuned)))
    for arguments in (
        ("train", config, *SHORT, ALL),
        ("eval", run, "--tasks", "heldout", "--out", run / "reports" / "first"),
        ("finetune", run, tmp_path / "tone.yaml", ALL),
    ):
        done = command.run(*arguments, timeout_s=180)
        assert (done.returncode, "warning" in done.stdout) == (0, False), done.stdout + done.stderr
    report = json.loads((tuned / "reports" / "finetune" / "report.json").read_text())
    accuracy = report["splits"]["validation"]["figures"]["accuracy"]
    for of, key, expected in (
        (run, "eval/heldout/loss", None),
        (tuned, "finetune/validation/accuracy", accuracy),
    ):
        (point,) = curves(of).Scalars(key)
        (of_wandb,) = [line[key] for line in history(wandb_records(of)) if key in line]
        (of_mlflow,) = mlflow_history(of, key)
        assert point.value == pytest.approx(of_wandb)
        assert of_wandb == of_mlflow
        assert expected in (None, of_mlflow)


def mlflow_history(run: Path, key: str) -> list[float]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.parent / 'mlflow.db'}")
    run_id = (run / "mlflow_run_id").read_text().strip()
    return [point.value for point in client.get_metric_history(run_id, key)]
