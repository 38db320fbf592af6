"""The log that the loop writes to: files of the reporting rank, nothing on the others."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Batch, Cursor
from data_pipeline.errors import DataError
from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import StepResult
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.heldout import HeldOut
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import num_parameters
from pretrain.observe.log import RunLog
from pretrain.observe.memory import Peak, size
from pretrain.run_dir.records import read_events, read_metrics
from tests.helpers.families import family_config
from tests.helpers.small_configs import config

ROWS, LENGTH = 240, 32
PEAK = Peak(None, 1_500_000_000)
FLOPS = 3e12  # of a step


def batch(step: int) -> Batch:
    rows = np.zeros((ROWS // 2, LENGTH), dtype=np.int64)  # one of two data ranks
    ids = np.full((ROWS, 3), step, dtype=np.int64)
    return Batch(rows, rows, np.ones(rows.shape, np.float32), sample_ids=ids, cursor=Cursor(step * ROWS, "f"))


def run_config(directory: Path) -> RunConfig:
    return config(run={"dir": str(directory / "run")}, track={"mlflow": False}, train={"steps": 3})


def run(directory: Path, first: int, last: int, reports: bool = True, ends: str = "finished") -> None:
    settings = run_config(directory)
    with RunLog(settings, plan_layout(settings, 2), reports) as log:
        if first > 1:
            log.event("resumed", step=first - 1)
        log.begin(settings, first - 1, (first - 1) * ROWS * LENGTH)
        for step in range(first, last + 1):
            log.step(
                step,
                step * ROWS * LENGTH,
                batch(step),
                StepResult(loss_sum=3000.0, token_count=1000, grad_norm=1.5, skipped=False, flops=FLOPS),
                learning_rate=0.5,
                seconds=0.25,
                save_seconds=0.125,
                peak=PEAK,
            )
        log.heldout(last, last * ROWS * LENGTH, HeldOut(loss_sum=500.0, token_count=200, words=None, text_bytes=None))
        if ends == "stopped":
            log.stopped(last, 0)
        elif ends == "finished":
            log.finished(last, 0)


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_a_refused_command_is_no_event_of_a_run_that_has_begun(kind: type[Exception], tmp_path: Path) -> None:
    settings = run_config(tmp_path)

    def refused(error: Exception) -> list[str]:
        with pytest.raises(type(error)), RunLog(settings, plan_layout(settings, 2), True):
            raise error
        return [event["event"] for event in read_events(tmp_path / "run")]

    assert refused(kind("x")) == ["failed"], "nothing else says why it has not begun"
    run(tmp_path, 1, 3)
    assert refused(kind("x")) == ["failed", "started", "heldout", "finished"]
    assert refused(RunError("x"))[-1] == "failed"


def test_a_step_is_one_line_of_the_whole_run(tmp_path: Path) -> None:
    run(tmp_path, 1, 2)
    line = read_metrics(tmp_path / "run")[1]
    assert line == {
        "step": 2,
        "loss": 3.0,
        "grad_norm": 1.5,
        "learning_rate": 0.5,
        "tokens": 2 * ROWS * LENGTH,
        "samples": 2 * ROWS,
        "data_hash": batch(2).data_hash,
        "step_seconds": 0.25,
        "tokens_per_second": ROWS * LENGTH / 0.25,  # of the global batch, not of one rank's rows
        "mfu": None,
        "save_seconds": 0.125,
        "loss_scale": None,
        "device_peak_bytes": None,
        "host_peak_bytes": 1_500_000_000,
    }


def test_each_of_several_terms_has_a_column(tmp_path: Path) -> None:
    settings = run_config(tmp_path)
    terms = {"tokens": (2000.0, 1000), "next_sentence": (4.0, 8)}
    with RunLog(settings, plan_layout(settings, 2), True) as log:
        log.begin(settings, 0, 0)
        log.step(
            1,
            1,
            batch(1),
            StepResult(loss_sum=2500.0, token_count=1000, grad_norm=1.5, skipped=False, terms=terms),
            learning_rate=0.5,
            seconds=0.25,
            save_seconds=0.125,
            peak=PEAK,
        )
        terms = {"next_sentence": (3.0, 4)}
        log.heldout(1, 1, HeldOut(loss_sum=500.0, token_count=200, words=None, text_bytes=None, terms=terms))
        log.finished(1, 0)
    (line,) = read_metrics(tmp_path / "run")
    assert (line["loss"], line["loss_tokens"], line["loss_next_sentence"]) == (2.5, 2.0, 0.5)
    assert "terms" not in line
    heldout = next(event for event in read_events(tmp_path / "run") if event["event"] == "heldout")
    assert (heldout["loss"], heldout["loss_next_sentence"]) == (2.5, 0.75)


def test_each_of_several_sources_with_labels_in_a_step_has_a_column(tmp_path: Path) -> None:
    settings = run_config(tmp_path)
    sources = {"web": (2000.0, 800), "tasks": (500.0, 200), "rare": (0.0, 0)}
    result = StepResult(loss_sum=2500.0, token_count=1000, grad_norm=1.5, skipped=False, by_source=sources)
    with RunLog(settings, plan_layout(settings, 2), True) as log:
        log.begin(settings, 0, 0)
        log.step(1, 1, batch(1), result, learning_rate=0.5, seconds=0.25, save_seconds=0.125, peak=PEAK)
        log.finished(1, 0)
    (line,) = read_metrics(tmp_path / "run")
    assert (line["loss"], line["loss_source_web"], line["loss_source_tasks"]) == (2.5, 2.5, 2.5)
    assert not {"loss_source_rare", "by_source"} & line.keys()


def test_each_of_several_sources_has_a_held_out_loss_and_bits_per_byte(tmp_path: Path) -> None:
    settings = run_config(tmp_path)
    scored = HeldOut(
        loss_sum=110.0, token_count=40, words=None, text_bytes=None,
        by_source=[(80.0, 20), (30.0, 20)], bytes_by_source=[100.0, None],
    )  # fmt: skip
    with RunLog(settings, plan_layout(settings, 2), True) as log:
        log.begin(settings, 0, 0)
        log.heldout(1, 1, scored, ["ja", "labelled"])
        log.finished(1, 0)
    heldout = next(event for event in read_events(tmp_path / "run") if event["event"] == "heldout")
    assert (heldout["loss_source_ja"], heldout["loss_source_labelled"]) == (4.0, 1.5)
    assert heldout["bits_per_byte_source_ja"] == pytest.approx(80 / math.log(2) / 100)
    assert "bits_per_byte_source_labelled" not in heldout


def test_experts_are_counted_by_layer_and_a_layer_that_collapses_is_said_once(tmp_path: Path) -> None:
    even, collapsed, nearly = [100, 90, 110, 95], [2, 200, 8, 190], [5, 200, 11, 184]
    steps = [[even, even], [even, collapsed], [], [collapsed, collapsed], [even, nearly], [[1, 0, 0, 9], collapsed]]

    def logged(name: str, **health: Any) -> Path:
        settings = config(run={"dir": str(tmp_path / name)}, track={"mlflow": False}, health=health)
        with RunLog(settings, plan_layout(settings, 2), True) as log:
            log.begin(settings, 0, 0)
            for step, layers in enumerate(steps, 1):
                experts = {f"decoder.layers.{number}": counts for number, counts in enumerate(layers)}
                result = StepResult(
                    loss_sum=1.0, token_count=1, grad_norm=1.5, skipped=False, tokens_per_expert=experts
                )
                log.step(step, 1, batch(1), result, learning_rate=0.5, seconds=0.25, save_seconds=0.125, peak=PEAK)
        return tmp_path / name

    def said(run: Path) -> list[tuple[int, dict[str, int]]]:
        return [(event["step"], event["idle"]) for event in read_events(run) if event["event"] == "idle_experts"]

    run = logged("run")
    lines = read_metrics(run)
    assert [[line.get(f"tokens_per_expert/decoder.layers.{n}") for n in (0, 1)] for line in lines] == [
        layers or [None, None] for layers in steps
    ]
    assert not any("tokens_per_expert" in line for line in lines)
    first, second = {"decoder.layers.1": 2}, {"decoder.layers.0": 2}
    assert said(run) == [(2, first), (4, second), (6, first)], "ten tokens of a layer say nothing"
    warning = next(event["text"] for event in read_events(run) if event["event"] == "idle_experts")
    assert warning.startswith("step 2: 2 of 4 experts of decoder.layers.1 are idle: each has less than a tenth of the ")
    assert said(logged("less", idle_experts=0.25)) == [(2, first), (4, second)], "one of four is enough"
    assert said(logged("none", idle_experts=None)) == said(logged("more", idle_experts=0.6)) == []


def test_events_tell_the_story(tmp_path: Path) -> None:
    run(tmp_path, 1, 2, ends="stopped")
    run(tmp_path, 2, 3)
    events = read_events(tmp_path / "run")
    assert [event["event"] for event in events] == ["started", "heldout", "stopped", "resumed", "heldout", "finished"]
    assert (events[1]["loss"], events[1]["step"]) == (2.5, 2)
    assert events[0]["layout"] == "tp1pp1dp2+zero1"
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]


def test_the_resolved_config_is_kept(tmp_path: Path) -> None:
    run(tmp_path, 1, 1)
    assert load(RunConfig, tmp_path / "run" / "config.yaml") == run_config(tmp_path)


def test_other_ranks_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 1, 2, reports=False)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_the_terminal_says_what_runs_and_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 1, 3)
    lines = capsys.readouterr().out.splitlines()
    parameters = num_parameters(run_config(tmp_path).model)
    assert lines[0].startswith(f"run: {parameters:,} parameters on tp1pp1dp2+zero1, step 0 of 3, 0 of 23,040 tokens")
    assert [line.split("  ")[0] for line in lines[2:5]] == ["step 1/3", "step 2/3", "step 3/3"]
    assert lines[5] == "held-out loss 2.5000 after step 3"


def test_a_mixture_of_experts_says_how_much_a_token_passes_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_section = {"run": {"dir": str(tmp_path / "run")}, "track": {"mlflow": False}}
    settings = family_config("llama", model={"experts": {"count": 8, "top_k": 2}}, **run_section)
    with RunLog(settings, plan_layout(settings, 1), True) as log:
        log.begin(settings, 0, 0)
    (started,) = (event for event in read_events(tmp_path / "run") if event["event"] == "started")
    model = settings.model
    of_expert = 3 * model.hidden * model.ffn_dim
    assert started["parameters"] - started["active_parameters"] == model.layers * 6 * of_expert
    beginning = f" {started['parameters']:,} parameters ({started['active_parameters']:,} active) on "
    assert beginning in capsys.readouterr().out


def test_a_warning_is_printed_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = run_config(tmp_path)
    with RunLog(settings, plan_layout(settings, 2), True) as log:
        log.warn("step-00000002 is damaged: skipped")
    assert "warning: step-00000002 is damaged: skipped\n" in capsys.readouterr().out
    assert read_events(tmp_path / "run")[0]["text"] == "step-00000002 is damaged: skipped"


def test_an_error_is_recorded_and_passes_through(tmp_path: Path) -> None:
    settings = run_config(tmp_path)
    with pytest.raises(RunError), RunLog(settings, plan_layout(settings, 2), True):
        raise RunError("the loss is not finite")
    (event,) = read_events(tmp_path / "run")
    assert (event["event"], event["reason"]) == ("failed", "RunError: the loss is not finite")


def test_a_mistake_before_the_first_step_leaves_mlflow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.observe.log.Trackers", pytest.fail)
    test_an_error_is_recorded_and_passes_through(tmp_path)


def test_scores_of_a_report_reach_the_trackers_during_the_run_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: list[tuple[int, str, float]] = []
    kept: list[Any] = []
    monkeypatch.setattr("pretrain.observe.track.Trackers.point", lambda _, *point: points.append(point))
    monkeypatch.setattr(
        "pretrain.observe.log.keep_report", lambda *report, **more: kept.append((report[3], more["step"]))
    )
    settings = run_config(tmp_path)
    with RunLog(settings, plan_layout(settings, 2), True) as log:
        log.report(3, [], "reports/finetune", {"finetune/test/accuracy": 0.5})
        assert (points, kept) == ([], [({"finetune/test/accuracy": 0.5}, 3)])
        log.begin(settings, 0, 0)
        log.report(3, [], "reports/finetune", {"finetune/test/accuracy": 0.5})
    assert (points, len(kept)) == ([(3, "finetune/test/accuracy", 0.5)], 1)


@pytest.mark.parametrize(("ends", "status"), [("stopped", "stopped"), ("finished", "finished"), ("crashed", "failed")])
def test_mlflow_learns_how_the_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, status: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr("pretrain.observe.track.Trackers.close", lambda self, status: said.append(status))
    run(tmp_path, 1, 1, ends=ends)
    assert said == [status]


@pytest.mark.parametrize("ends", ["stopped", "finished", "crashed"])
def test_the_last_line_is_where_the_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: str
) -> None:
    closed: list[str] = []
    monkeypatch.setattr("pretrain.observe.track.Trackers.close", lambda self, status: closed.append(status))
    monkeypatch.setattr("pretrain.observe.track.Trackers.links", lambda self: ["MLflow: the page"] * len(closed))
    run(tmp_path, 1, 1, ends=ends)
    assert (capsys.readouterr().out.splitlines()[-1] == "MLflow: the page") == (ends != "crashed")


def test_mfu_is_the_models_work_over_the_peak_of_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def h100(*_: Any) -> str:
        return "NVIDIA H100 80GB HBM3"

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", h100)
    run(tmp_path, 1, 1)
    assert read_metrics(tmp_path / "run")[0]["mfu"] == pytest.approx(FLOPS / 0.25 / (2 * 66.9e12))


def test_the_estimate_of_memory_comes_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 1, 1)
    parameters = num_parameters(run_config(tmp_path).model)
    line = capsys.readouterr().out.splitlines()[1]  # two data ranks share the optimizer's state: 4 + 4 + 8 / 2
    assert line.startswith(f"memory: the fullest rank holds {size(12 * parameters)} of weights ({size(4 * parameters)}")
    assert "activations, buffers and libraries come on top" in line


def test_an_end_names_the_checkpoint_the_loss_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, 1, 3)
    where = tmp_path / "run"
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "finished: 3 steps, 0 tokens, held-out loss 2.5000, at most 1.5 GB of the host's memory a rank",
        f"checkpoint: {where}/checkpoints/step-00000003",
        f"next: pretrain eval {where} --tasks heldout,arithmetic_2da --out {where}/reports/first",
        f"      pretrain generate {where} --prompt The",
        f"      pretrain export {where} --to hf exported/run",
    ]


def test_a_stop_says_where_it_saved_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, 1, 2, ends="stopped")
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"stopped: saved at step 2 in {tmp_path}/run/checkpoints/step-00000002; run the same command again to resume"
    )
