"""MLflow tracking: no failure of it reaches training, and none loses more than it must."""

import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.config.run_config import RunConfig
from pretrain.observe.track import Trackers, TrackerThread
from pretrain.observe.tracker import RefusedError
from tests.unit.observe.conftest import PATIENCE_S
from tests.unit.observe.test_track import STEP, run_config


class Warnings(list[str]):
    """What the tracker warns of, from its own thread."""

    def __init__(self) -> None:
        self._given = threading.Event()

    def __call__(self, sentence: str) -> None:
        self.append(sentence)
        self._given.set()

    def wait(self) -> None:
        """Until there is one."""
        assert self._given.wait(PATIENCE_S)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def assert_one_warning(warnings: list[str], expected: str) -> None:
    (warning,) = warnings
    assert "\n" not in warning
    assert expected in warning
    assert warning.endswith("training continues, and run.dir has everything")


def assert_harmless(run: RunConfig, expected: str) -> None:
    warnings = Warnings()
    tracker = Trackers(run, warnings)
    for step in range(1, 2001):
        tracker.step(replace(STEP, step=step))
    warnings.wait()
    tracker.close("finished")
    assert_one_warning(warnings, expected)


def test_a_server_that_is_down_is_one_warning(tmp_path: Path) -> None:
    assert_harmless(run_config(tmp_path, uri=closed_port()), "cannot be used ([Errno 111] Connection refused)")


def test_a_server_that_never_answers_is_one_warning_and_a_bounded_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretrain.observe.mlflow_tracker._CLOSE_REMOTE_S", 0.1)
    warnings = Warnings()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        tracker = Trackers(run_config(tmp_path, uri=f"http://127.0.0.1:{server.getsockname()[1]}"), warnings)
        tracker.step(STEP)
        asked, _ = server.accept()
        with asked:
            tracker.close("finished")
            assert tracker._threads[0]._thread.is_alive(), "it still waits for an answer"
    assert_one_warning(warnings, "did not take all of the run")


def test_a_broken_database_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").write_bytes(b"not a database" * 1000)
    assert_harmless(run_config(tmp_path), "file is not a database")


def test_a_database_that_cannot_be_opened_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mlflow.db").mkdir(parents=True)
    assert_harmless(run_config(tmp_path), "unable to open database file")


def test_no_mlflow_at_all_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pretrain.observe.mlflow_run", None)
    assert_harmless(run_config(tmp_path), "import of pretrain.observe.mlflow_run halted")


def test_a_warning_shows_no_password(tmp_path: Path) -> None:
    uri = closed_port().replace("http://", "http://me:secret@")
    warnings = Warnings()
    tracker = Trackers(run_config(tmp_path, uri=uri), warnings)
    warnings.wait()
    tracker.close("finished")
    assert_one_warning(warnings, "cannot be used")
    assert "secret" not in warnings[0]


class FakeRun:
    """Stands in for MLflow; fails a given number of times. `before_send` is called in the tracker's thread."""

    def __init__(self, failures: int = 0, before_send: Callable[[], object] = lambda: None) -> None:
        self.failures, self.before_send = failures, before_send
        self.sending, self.sent = threading.Event(), threading.Event()
        self.calls: list[Any] = []

    def log_metrics(self, points: list[Any]) -> None:
        self.sending.set()
        self.before_send()
        if self.failures:
            self.failures -= 1
            raise ConnectionError("gone")
        self.calls.extend((point.step, point.value) for point in points)
        self.sent.set()

    def log_artifact(self, file: Any) -> None:
        raise PermissionError("no writing here")

    def finish(self, status: str) -> None:
        self.calls.append(status)


def use(monkeypatch: pytest.MonkeyPatch, run: FakeRun) -> None:
    monkeypatch.setattr(TrackerThread, "_open", lambda _: run)
    monkeypatch.setattr("pretrain.observe.track._GATHER_S", 0.01)
    monkeypatch.setattr("pretrain.observe.track._RETRY_S", 0.01)


def test_an_outage_loses_nothing_and_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = FakeRun(failures=3)
    use(monkeypatch, mlflow)
    monkeypatch.setattr("pretrain.observe.track._POINTS_PER_BATCH", 2)
    warnings = Warnings()
    tracker = Trackers(run_config(tmp_path), warnings)
    tracker.point(0, "loss", 0.0)
    warnings.wait()  # it has failed
    for step in range(1, 5):
        tracker.point(step, "loss", float(step))
    assert mlflow.sent.wait(PATIENCE_S), "it is tried again"
    tracker.close("finished")
    assert mlflow.calls == [(step, float(step)) for step in range(5)] + ["finished"]
    assert len(warnings) == 1


def test_counts_of_experts_fill_one_place_of_what_waits_and_arrive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    class Leaving(FakeRun):
        def log_metrics(self, points: list[Any]) -> None:
            sent.append(len(points))
            self.failures = int(len(sent) == 3)  # away in the middle of them
            super().log_metrics(points)

    service = Leaving()
    use(monkeypatch, service)
    monkeypatch.setattr("pretrain.observe.track._PENDING", 9)
    monkeypatch.setattr("pretrain.observe.track._POINTS_PER_BATCH", 20)
    warnings = Warnings()
    tracker = Trackers(run_config(tmp_path), warnings)
    experts = {"decoder.layers.1": list(range(30)), "mtp.layers.0.transformer_layer": list(range(30))}
    tracker.step(replace(STEP, step=1, tokens_per_expert=experts))
    assert service.sent.wait(PATIENCE_S)
    warnings.wait()
    tracker.close("finished")
    assert service.calls[-61:-1] == [(1, float(number)) for number in [*range(30), *range(30)]]
    assert len(service.calls) == 8 + 60 + 1, "what had arrived before is not sent again"
    (away,) = warnings
    assert "cannot be used (gone)" in away


def test_a_point_that_is_refused_for_good_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(FakeRun):
        def log_metrics(self, points: list[Any]) -> None:
            if odd := [point.name for point in points if "@" in point.name]:
                raise RefusedError(f"no {odd[0]}")
            super().log_metrics(points)

    service = Strict(failures=1)
    use(monkeypatch, service)
    warnings = Warnings()
    tracker = Trackers(run_config(tmp_path), warnings)
    for step in range(1, 4):
        for name in ("a@b", "loss", "c@d"):
            tracker.point(step, name, float(step))
    tracker.close("finished")
    assert service.calls == [(1, 1.0), (2, 2.0), (3, 3.0), "finished"]
    refused, away = sorted(warnings, key=lambda sentence: "cannot be used" in sentence)
    assert "does not take a@b (no a@b)" in refused
    assert "cannot be used (gone)" in away, "an outage is said beside it"


def test_training_waits_for_nothing_that_is_being_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    mlflow = FakeRun(before_send=lambda: answer.wait(PATIENCE_S))
    use(monkeypatch, mlflow)
    tracker = Trackers(run_config(tmp_path), lambda _: None)
    tracker.point(0, "loss", 0.0)
    assert mlflow.sending.wait(PATIENCE_S)
    for step in range(1, 1001):
        tracker.step(replace(STEP, step=step))
    assert not mlflow.sent.is_set(), "MLflow has answered nothing yet"
    answer.set()
    tracker.close("finished")
    assert mlflow.calls[-1] == "finished"


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.observe.track._PENDING", 100)
    answer = threading.Event()
    mlflow = FakeRun(before_send=lambda: answer.wait(PATIENCE_S))
    use(monkeypatch, mlflow)
    warnings = Warnings()
    tracker = Trackers(run_config(tmp_path), warnings)
    for step in range(250):
        tracker.point(step, "loss", float(step))
    answer.set()
    tracker.close("finished")
    assert mlflow.calls == [*((step, float(step)) for step in range(100)), "finished"]
    assert "150 points or files missing" in warnings[0]


def test_a_file_that_cannot_be_stored_does_not_hold_up_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = FakeRun()
    use(monkeypatch, mlflow)
    warnings: list[str] = []
    tracker = Trackers(run_config(tmp_path), warnings.append)
    tracker.artifact(tmp_path / "report.html")
    tracker.point(1, "loss", 1.0)
    tracker.close("failed")
    assert mlflow.calls == [(1, 1.0), "failed"]
    assert len(warnings) == 1
    assert "cannot store" in warnings[0]


def test_a_database_whose_making_was_interrupted_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrain.observe import mlflow_run

    class Killed(BaseException):
        pass

    def half_made(tracking_uri: str) -> None:
        Path(tracking_uri.removeprefix("sqlite:///")).write_bytes(b"half a database")
        raise Killed

    monkeypatch.setattr(mlflow_run, "MlflowClient", half_made)
    with pytest.raises(Killed):
        mlflow_run._create(tmp_path / "mlflow.db")
    assert not (tmp_path / "mlflow.db").exists()
