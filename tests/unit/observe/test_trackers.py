"""TensorBoard, Weights & Biases and several trackers at once: what arrives, and that none of them is waited for."""

import json
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.observe.points import DataInput, File, Point
from pretrain.observe.track import TRACKERS, Trackers, check_trackers, keep_report
from pretrain.observe.tracker import RunStatus, Tracker
from tests.helpers.small_configs import config
from tests.unit.observe.conftest import EXPERTS, PATIENCE_S, STEP

ODD = "source_web/../a.b@v1 (x)+y=z:[0]"
DATA = DataInput("book", "/datasets/book", "0123456789abcdef" * 4, {"train_tokens": 1000})


def need_packages() -> None:
    """Skips a test where the extras are not installed, as they are with the extra `dev`."""
    for package in ("tensorboard", "wandb"):
        pytest.importorskip(package)


def run_config(directory: Path, **track: Any) -> RunConfig:
    (directory / "runs" / "a").mkdir(parents=True, exist_ok=True)
    return config(run={"dir": str(directory / "runs" / "a"), "name": "a"}, track=track)


def share(run: RunConfig, steps: range, status: RunStatus) -> list[str]:
    """One process's share of a run; the warnings it gave."""
    warnings: list[str] = []
    trackers = Trackers(run, warnings.append, {"layout": "tp2"})
    trackers.data([DATA])
    for step in steps:
        experts = EXPERTS if step == 3 else {}
        trackers.step(replace(STEP, step=step, loss=10.0 - step, tokens_per_expert=experts))
    trackers.point(steps[-1], "heldout_loss", 5.5)
    trackers.point(steps[-1], ODD, 7.5)
    trackers.artifact(Path(run.run.dir) / "report.html", "reports")
    trackers.close(status)
    return warnings


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after step 4 and resumed from step 2, and was scored afterwards; its directory."""
    need_packages()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pretrain.observe.mlflow_tracker._CLOSE_LOCAL_S", PATIENCE_S)
        for tracker in ("tensorboard_tracker.TensorBoardTracker", "wandb_tracker.WandbTracker"):
            patch.setattr(f"pretrain.observe.{tracker}.close_s", PATIENCE_S)
        run = run_config(
            tmp_path_factory.mktemp("tracked"), kind=["mlflow", "tensorboard", "wandb"], offline=True,
            uri="sqlite:////me:secret@nowhere/x", mlflow=False,
        )  # fmt: skip
        directory = Path(run.run.dir)
        (directory / "report.html").write_text("<p>report</p>")
        (directory / "a[1]*?.json").write_text("{}")
        assert share(run, range(1, 5), "stopped") == []
        assert share(run, range(3, 6), "finished") == []
        warnings: list[str] = []
        scores = {"eval/last_word/0-shot/accuracy": 0.25}
        files = [directory / "report.html", directory / "a[1]*?.json"]
        keep_report(run, files, "reports/first", scores, step=4, warn=warnings.append)
        assert warnings == []
    return directory


def curves(run: Path) -> Any:
    """What TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run / "tensorboard")).Reload()


def test_tensorboard_reads_each_step_once(tracked: Path) -> None:
    read = curves(tracked)
    assert [(one.step, one.value) for one in read.Scalars("loss")] == [(step, 10.0 - step) for step in range(1, 6)]
    assert [(one.step, one.value) for one in read.Scalars("eval/last_word/0-shot/accuracy")] == [(4, 0.25)]
    assert set(read.Tags()["scalars"]) == {
        *("loss", "grad_norm", "learning_rate", "tokens", "samples", "step_seconds", "tokens_per_second"),
        *("save_seconds", "heldout_loss", "eval/last_word/0-shot/accuracy", ODD),
        *(f"tokens_per_expert/decoder.layers.1/{number:02}" for number in range(11)),
    }
    experts = read.Scalars("tokens_per_expert/decoder.layers.1/10")
    assert [(one.step, one.value) for one in experts] == [(3, 9.0)]


def test_tensorboard_shows_config_and_facts_as_texts(tracked: Path) -> None:
    texts = {
        name: curves(tracked).Tensors(name)[-1].tensor_proto.string_val[0].decode() for name in ("config", "facts")
    }
    assert "layers: 8" in texts["config"]
    assert "secret" not in texts["config"]
    assert "layout: tp2" in texts["facts"]


def wandb_records(run: Path) -> list[Any]:
    """What `wandb sync` would upload, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    return [Record.FromString(data) for path in files for data in logged(path.read_bytes())]


def logged(content: bytes) -> Iterator[bytes]:
    """Records of a file in LevelDB's log format, after W&B's 7 bytes: parts with a header (checksum, length, type) in
    blocks of 32 KiB."""
    position, record = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no header fits
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # complete, or the last part
            yield record
            record = b""


def history(records: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in one.history.item}
        for one in records
        if one.WhichOneof("record_type") == "history"
    ]


def test_wandb_has_steps_scores_and_the_status_offline(tracked: Path) -> None:
    records = wandb_records(tracked)
    lines = history(records)
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert losses == [(step, 10.0 - step) for step in (1, 2, 3, 4, 3, 4, 5)]
    assert [line[ODD] for line in lines if ODD in line] == [7.5, 7.5]
    assert [(line["step"], line["heldout_loss"]) for line in lines if "heldout_loss" in line] == [(4, 5.5), (5, 5.5)]
    expert = "tokens_per_expert/decoder.layers.1/10"
    assert [(line["step"], line[expert]) for line in lines if expert in line] == [(3, 9.0), (3, 9.0)]
    scored = "eval/last_word/0-shot/accuracy"
    assert [(line["step"], line[scored]) for line in lines if scored in line] == [(4, 0.25)]
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    kept = (tracked / "wandb_run_id").read_text()
    assert {(run.run_id, run.run_group, run.job_type) for run in runs if run.job_type == "train"} == {
        (kept, "a", "train")
    }
    assert [run.run_group for run in runs if run.job_type == "eval"] == ["a"]
    exits = [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"]
    assert exits == [75, 0, 0]
    # Which W&B shows as preempted, where it shows every other status but 0 as failed.
    assert [record.WhichOneof("record_type") for record in records].count("preempting") == 1


def test_wandb_keeps_the_report_and_no_secret(tracked: Path) -> None:
    assert len(list(tracked.glob("wandb/offline-run-*/files/reports/report.html"))) == 2
    assert len(list(tracked.glob("wandb/offline-run-*/files/reports/first/report.html"))) == 1
    assert all(b"secret" not in path.read_bytes() for path in tracked.glob("wandb/**/*") if path.is_file())


def test_wandb_keeps_a_file_whose_name_would_be_a_pattern(tracked: Path) -> None:
    saved = [item.path for one in wandb_records(tracked) for item in one.files.files]
    assert "reports/first/a[1]*?.json" in saved


@pytest.mark.parametrize(
    ("kind", "name"),
    [("wandb", "a/b"), ("wandb", "100%"), ("wandb", "x" * 129), ("wandb", ""), ("mlflow", ""), ("mlflow", "x" * 501)],
)
def test_an_experiment_whose_name_is_refused_begins_no_run(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match=r"track.experiment='.*' is no name of .*: it needs 1 to \d+ characters"):
        check_trackers(run_config(tmp_path, kind=kind, experiment=name))


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a#b", "a?b", "a%b", "a:b", "x" * 129, "a b.c@d", "x" * 128])
def test_a_project_is_refused_where_wandb_refuses_it(tmp_path: Path, name: str) -> None:
    need_packages()
    import wandb

    def accepts(call: Any, error: type[Exception]) -> bool:
        try:
            call()
        except error:
            return False
        return True

    run = run_config(tmp_path, kind="wandb", experiment=name)
    theirs = accepts(lambda: wandb.Settings(project=name), wandb.UsageError)
    assert accepts(lambda: check_trackers(run), ConfigError) == theirs


def test_wandb_without_a_key_is_a_warning_and_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_packages()
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setattr("pretrain.observe.wandb_tracker.WandbTracker.close_s", PATIENCE_S)
    (warning,) = share(run_config(tmp_path, kind="wandb"), range(1, 3), "finished")
    assert "run `wandb login`, or set track.offline=true" in warning


class Recording(Tracker):
    """A tracker that keeps what it gets."""

    got: list[tuple[int, float]]
    service = "Recording"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        type(self).got = []

    def start(self, tags: Mapping[str, str]) -> None:
        pass

    def log_metrics(self, points: Sequence[Point]) -> None:
        self.got.extend((point.step, point.value) for point in points if point.name == "loss")

    def log_artifact(self, file: File) -> None:
        pass

    def log_dataset(self, data: DataInput) -> None:
        pass

    def finish(self, status: RunStatus) -> None:
        pass

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        pass


class Failing(Recording):
    """A tracker that takes nothing."""

    service = "Failing"

    def start(self, tags: Mapping[str, str]) -> None:
        raise ConnectionError("no such host")

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        raise ConnectionError("no such host")


class Hanging(Recording):
    """A tracker that never answers."""

    service, close_s = "Hanging", 0.2

    def start(self, tags: Mapping[str, str]) -> None:
        threading.Event().wait()

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        threading.Event().wait()


def test_a_tracker_that_fails_or_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in {"hanging": Hanging, "failing": Failing, "recording": Recording}.items():
        monkeypatch.setitem(TRACKERS.built_in, name, kind)
    run = run_config(tmp_path)
    kinds = ("hanging", "failing", "recording")
    run = run.model_copy(update={"track": run.track.model_copy(update={"kind": kinds})})
    started_s = time.monotonic()
    warnings = share(run, range(1, 4), "finished")
    assert Recording.got == [(1, 9.0), (2, 8.0), (3, 7.0)]
    assert time.monotonic() - started_s < 10  # the longest of the three, not their sum, and less than a retry
    failing, hanging = sorted(warnings)
    assert failing.startswith("Failing cannot be used (no such host)")
    assert hanging.startswith("Hanging did not take all of the run")
    monkeypatch.setattr("pretrain.observe.track._REPORT_S", 0.2)
    warnings.clear()
    keep_report(run, [], "reports", {"x": 1.0}, step=3, warn=warnings.append)
    assert warnings == [
        "the report was not kept in Hanging (it does not answer)",
        "the report was not kept in Failing (no such host)",
    ]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = run_config(tmp_path, kind=["mlflow", name])

    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("pretrain.observe.track.version", missing)
    with pytest.raises(ConfigError, match=rf"track.kind={name} needs .* run `pip install 'pretrain\[{name}\]'`"):
        check_trackers(run)
    check_trackers(run_config(tmp_path))
    monkeypatch.setattr("pretrain.observe.track.version", lambda package: "1.0")
    check_trackers(run)


def test_mlflow_can_be_left_out_of_several(tmp_path: Path) -> None:
    assert run_config(tmp_path).track.names == ("mlflow",)
    assert run_config(tmp_path, mlflow=False).track.names == ()
    assert run_config(tmp_path, kind=["mlflow", "wandb", "wandb"]).track.names == ("mlflow", "wandb")
    assert run_config(tmp_path, kind=["mlflow", "wandb"], mlflow=False).track.names == ("wandb",)
