"""MLflow tracking: what arrives, and what a resumed run does."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.observe.points import DataInput, Point
from pretrain.observe.sqlite_uri import sqlite_uri
from pretrain.observe.track import Trackers, keep_report
from tests.helpers.small_configs import config
from tests.unit.observe.conftest import EXPERTS, PATIENCE_S, STEP

DATA = DataInput("book", "/datasets/book", "0123456789abcdef" * 4, {"train_tokens": 1000})


def run_config(directory: Path, **track: Any) -> RunConfig:
    return config(run={"dir": str(directory / "runs" / "a"), "name": "a"}, track=track)


def client(directory: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=sqlite_uri(directory / "runs" / "mlflow.db"))


def the_run(directory: Path, experiment: str = "pretrain") -> Any:
    """The one run of the experiment."""
    found = client(directory)
    (run,) = found.search_runs([found.get_experiment_by_name(experiment).experiment_id])
    return run


def track(run: RunConfig, steps: range, status: Any = "finished", **more: Any) -> list[str]:
    """One process's share of a run; the warnings it gave."""
    warnings: list[str] = []
    tracker = Trackers(run, warnings.append, **more)
    for step in steps:
        experts = EXPERTS if step == 2 else {}
        tracker.step(replace(STEP, step=step, loss=10.0 - step, tokens_per_expert=experts))
    tracker.close(status)
    return warnings


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after 3 steps and was resumed on another layout, in an empty working directory."""
    directory = tmp_path_factory.mktemp("tracked")
    before = Path.cwd()
    (directory / "cwd").mkdir()
    os.chdir(directory / "cwd")
    try:
        run = run_config(directory)
        assert track(run, range(1, 4), "stopped") == []
        assert the_run(directory).info.status == "KILLED"
        report = directory / "report.html"
        report.write_text("<p>report</p>")
        warnings: list[str] = []
        other = run.model_copy(update={"parallel": run.parallel.model_copy(update={"tensor": 2})})
        tracker = Trackers(other, warnings.append, tags={"layout": "tp2pp1dp1"})
        tracker.step(replace(STEP, step=4, loss=6.0))
        tracker.point(4, "heldout_loss", 5.5)
        tracker.artifact(report, "reports")
        tracker.data([DATA, DATA])
        tracker.close("finished")
        assert warnings == []
        (directory / "links").write_text("\n".join(tracker.links()))
        kept = {"eval/last_word/0-shot/accuracy": 0.25}
        keep_report(run, [report], "scored", kept, step=4, warn=warnings.append)
        assert warnings == []
    finally:
        os.chdir(before)
    return directory


def test_the_dataset_is_an_input_with_its_fingerprint(tracked: Path) -> None:
    (found,) = the_run(tracked).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("book", "0123456789abcdef" * 2 + "0123")
    profile = json.loads(found.dataset.profile)
    assert (profile["fingerprint"], profile["train_tokens"]) == (DATA.fingerprint, 1000)
    assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "training")]


def test_the_experiment_is_of_training_so_that_its_page_is_the_list_of_runs(tmp_path: Path) -> None:
    run = run_config(tmp_path)
    track(run, range(1, 2))
    found = client(tmp_path)
    kind = found.get_experiment_by_name("pretrain").tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"
    experiment = found.create_experiment("older")  # as one of an earlier version, and one whose kind was chosen
    chosen = found.create_experiment("chosen", tags={"mlflow.experimentKind": "genai_development"})
    for number, name in enumerate(("older", "chosen")):
        there = {"dir": str(tmp_path / "runs" / str(number)), "name": name}
        track(config(run=there, track={"experiment": name}), range(1, 2))
    assert found.get_experiment(experiment).tags["mlflow.experimentKind"] == "custom_model_development"
    assert found.get_experiment(chosen).tags["mlflow.experimentKind"] == "genai_development"


def test_the_link_is_the_page_of_the_run(tracked: Path) -> None:
    run = the_run(tracked).info
    page = f"http://127.0.0.1:5000/#/experiments/{run.experiment_id}/runs/{run.run_id}"
    command = f"mlflow ui --backend-store-uri {sqlite_uri(tracked / 'runs' / 'mlflow.db')}"
    assert (tracked / "links").read_text() == f"MLflow: {page} after `{command}`"


def test_scores_of_a_report_are_metrics_of_its_step(tracked: Path) -> None:
    run = the_run(tracked)
    (point,) = client(tracked).get_metric_history(run.info.run_id, "eval/last_word/0-shot/accuracy")
    assert (point.step, point.value) == (4, 0.25)
    assert run.info.status == "FINISHED"
    assert [file.path for file in client(tracked).list_artifacts(run.info.run_id, "scored")] == ["scored/report.html"]


def test_every_step_arrives_and_a_resumed_run_goes_on_in_the_same_run(tracked: Path) -> None:
    run = the_run(tracked)
    history = client(tracked).get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.0)]
    assert run.data.metrics["heldout_loss"] == 5.5
    assert (run.info.status, run.info.run_name) == ("FINISHED", "a")
    assert (tracked / "runs" / "a" / "mlflow_run_id").read_text() == run.info.run_id


def test_numbers_that_are_unknown_are_absent(tracked: Path) -> None:
    assert set(the_run(tracked).data.metrics) == {
        *("loss", "grad_norm", "learning_rate", "tokens", "samples", "step_seconds", "tokens_per_second"),
        *("save_seconds", "heldout_loss", "eval/last_word/0-shot/accuracy"),
        *(f"tokens_per_expert/decoder.layers.1/{number:02}" for number in range(11)),
    }


def test_the_tokens_of_each_expert_arrive(tracked: Path) -> None:
    found = client(tracked).get_metric_history(the_run(tracked).info.run_id, "tokens_per_expert/decoder.layers.1/10")
    assert [(point.step, point.value) for point in found] == [(2, 9.0)]


def test_parameters_are_the_resolved_config(tracked: Path) -> None:
    parameters = the_run(tracked).data.params
    assert parameters["model.layers"] == "8"
    assert parameters["model.attention.pattern"] == '["dense"]'
    assert parameters["run.name"] == "a"
    assert parameters["train.tokens"] == "null"


def test_what_a_resumed_run_sets_differently_is_a_tag(tracked: Path) -> None:
    run = the_run(tracked)
    assert run.data.params["parallel.tensor"] == "1"
    assert run.data.tags["resumed.parallel.tensor"] == "2"
    assert [tag for tag in run.data.tags if tag.startswith("resumed.")] == ["resumed.parallel.tensor"]


def test_system_facts_without_the_environment(tracked: Path) -> None:
    tags = the_run(tracked).data.tags
    assert tags["layout"] == "tp2pp1dp1"
    assert tags["system.python"] == ".".join(map(str, sys.version_info[:3]))
    assert {tag for tag in tags if tag.startswith("system.")} == {
        f"system.{fact}" for fact in ("python", "torch", "megatron_core", "host", "cpus", "gpus")
    }
    assert not any(os.environ["PATH"] in value for value in tags.values())


def test_reports_are_kept_beside_the_database_and_nothing_in_the_working_directory(tracked: Path) -> None:
    run = the_run(tracked)
    assert [found.path for found in client(tracked).list_artifacts(run.info.run_id, "reports")] == [
        "reports/report.html"
    ]
    kept = list((tracked / "runs" / "mlflow-artifacts").rglob("report.html"))
    assert [path.read_text() for path in kept] == ["<p>report</p>"] * 2
    assert list((tracked / "cwd").iterdir()) == []


def test_a_run_that_mlflow_forgot_begins_anew(tracked: Path) -> None:
    directory = tracked / "runs" / "b"
    directory.mkdir()
    (directory / "mlflow_run_id").write_text("0" * 32)
    assert track(config(run={"dir": str(directory)}, track={"experiment": "other"}), range(1, 2)) == []
    assert the_run(tracked, "other").data.metrics["loss"] == 9.0


ODD = ("source_web@v1", "source_a(b)", "source_web/../x", "source_a+b", "source_a=b", "/source", "x" * 300)


def test_a_name_that_mlflow_refuses_loses_no_point_and_no_run(tracked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.observe.mlflow_run.flatten", lambda tree: {"seed": "1", "a(b)": "2", "a[b]": "3"})
    run = config(run={"dir": str(tracked / "runs" / "odd")}, track={"experiment": "odd"})
    (tracked / "runs" / "odd").mkdir()
    warnings: list[str] = []
    trackers = Trackers(run, warnings.append, {"tag(s)": "4"})
    for step in (1, 2):
        for name in ("loss", *ODD):
            trackers.point(step, name, step)
    trackers._put(Point("heldout_loss", 5.0, 2, -1))  # MLflow refuses its time
    trackers.point(2, "heldout_loss", 6.0)
    trackers.close("finished")
    named, refused = warnings
    assert named == "MLflow refuses the name 'a(b)': there it is a_b_-cce46ea1, and others alike"
    assert "does not take heldout_loss (Invalid value -1 for parameter 'metrics[" in refused
    keep_report(run, [], "reports", {"finetune/test/f1 (a)": 0.5}, step=2, warn=warnings.append)
    assert len(warnings) == 3
    found = the_run(tracked, "odd")
    assert found.info.status == "FINISHED"
    assert found.data.metrics.pop("heldout_loss") == 6.0
    every_step = ("loss", "source_web_v1", "source_a_b_", "source_web/_/x", "source_a_b", "source_a_b", "_/source")
    values = [*((name, 2.0) for name in (*every_step, "x" * 241)), ("finetune/test/f1 _a_", 0.5)]
    assert sorted((name.rpartition("-")[0] or name, value) for name, value in found.data.metrics.items()) == sorted(
        values
    )
    assert sorted(found.data.params.values()) == ["1", "2", "3"]
    assert [key.rpartition("-")[0] for key, value in found.data.tags.items() if value == "4"] == ["tag_s_"]


def test_names_are_those_that_mlflow_accepts_and_two_stay_two() -> None:
    from mlflow.utils import validation

    from pretrain.observe.mlflow_names import MlflowNames

    kept = ("loss", "a/b", "a b", "a:b-c.d", "ünï", "x" * 250, "a_b-9516f153")
    odd = (*ODD, "a_b@", "a_b+", "", ".", "..", "a/..", "a//b", "a/", "./a", "a\n\nb", "\ud800", "x" * 301, "/" * 300)
    said: list[str] = []
    names = MlflowNames(said.append)
    assert [names(name) for name in kept] == list(kept)
    assert said == []
    for name in map(names, odd):
        validation._validate_metric(name, 1.0, 0, 0)
        validation._validate_param(name, "")
        validation._validate_tag(name, "")
    assert len({names(name) for name in (*kept, *odd)}) == len(kept) + len(odd)
    assert len(said) == 1


def test_a_run_that_was_deleted_refuses_nothing_for_good(tracked: Path) -> None:
    """It can be restored, and then gets what it missed."""
    from mlflow.exceptions import MlflowException

    from pretrain.observe.mlflow_run import MlflowWriter

    found = client(tracked)
    run = found.create_run("0").info.run_id
    found.delete_run(run)
    with pytest.raises(MlflowException, match="must be in the 'active' state"):
        MlflowWriter(found, run, lambda sentence: None).log_metrics([Point("loss", 1.0, 1, 0)])


def test_the_signs_of_addresses_in_a_path_are_of_the_path(tracked: Path, tmp_path: Path) -> None:
    directory = tmp_path / "what?" / "100%41=all"
    (directory / "runs" / "a").mkdir(parents=True)
    shutil.copy(tracked / "runs" / "mlflow.db", directory / "runs")  # to make one takes seconds
    run, warnings = run_config(directory, experiment="signs"), list[str]()
    assert track(run, range(1, 3)) == []
    report = directory / "report.html"
    report.write_text("<p>report</p>")
    keep_report(run, [report], "reports", {}, step=2, warn=warnings.append)
    assert warnings == []
    assert len(list((directory / "runs" / "mlflow-artifacts").rglob("report.html"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["what?"], "no folder of the address as it is written"
    assert the_run(directory, "signs").data.metrics["loss"] == 8.0


@pytest.mark.parametrize("path", ["/a/mlflow.db", "/a?b/c d.db", "/100%/x", "/%41?%3F", "/a@b:c/#d&e=f", "/ünï"])
def test_a_path_is_the_database_that_sqlalchemy_opens(path: str) -> None:
    from sqlalchemy import make_url

    from pretrain.observe.sqlite_uri import sqlite_path

    assert make_url(sqlite_uri(Path(path))).database == path
    assert sqlite_path(sqlite_uri(Path(path))) == Path(path)


def test_every_steps_thins_the_points(tmp_path: Path) -> None:
    sent: list[tuple[int, str]] = []
    with_all = Trackers(run_config(tmp_path, mlflow=True, every_steps=3, uri="http://127.0.0.1:9"), lambda _: None)
    with_all.point = lambda step, name, value: sent.append((step, name))  # type: ignore[method-assign]
    for step in range(1, 8):
        with_all.step(replace(STEP, step=step))
    with_all.close("finished")
    assert sorted({step for step, _ in sent}) == [3, 6]


def test_off_does_nothing(tmp_path: Path) -> None:
    assert track(run_config(tmp_path, mlflow=False), range(1, 4)) == []
    assert list(tmp_path.iterdir()) == []


QUIET = """
import sys
from pathlib import Path
from pretrain.observe import mlflow_tracker
from tests.unit.observe.conftest import PATIENCE_S, STEP
from tests.unit.observe.test_track import run_config, track
mlflow_tracker._CLOSE_LOCAL_S = PATIENCE_S
assert track(run_config(Path(sys.argv[1])), range(1, 3)) == []
"""


@pytest.mark.slow
def test_mlflow_says_nothing_of_its_own(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-c", QUIET, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a", "mlflow.db"]
