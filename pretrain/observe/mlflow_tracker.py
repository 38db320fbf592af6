"""MLflow as a tracker. mlflow itself takes seconds to import, so it is imported when the run is opened."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.config.run_config import RunConfig
from pretrain.observe.points import DataInput, File, Point, now_ms
from pretrain.observe.tracker import RunStatus, Tracker
from pretrain.run_dir.paths import RunDir

if TYPE_CHECKING:
    from pretrain.observe.mlflow_run import MlflowRun

# Limits of `close_s`. A local database answers in the end, a server may not; creating the tables takes seconds.
_CLOSE_LOCAL_S, _CLOSE_REMOTE_S = 60.0, 8.0
_STATUS: dict[RunStatus, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_SETTINGS = {  # MLflow's defaults wait for many minutes; what the user has set stays
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_METRICS_PER_BATCH = 1000  # MLflow's own limit


class MlflowTracker(Tracker):
    """A run in MLflow, at `track.uri`."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._run_dir = Path(config.run.dir).resolve()
        self._uri = config.track.uri or f"sqlite:///{self._run_dir.parent / 'mlflow.db'}"
        self.close_s = _CLOSE_LOCAL_S if self._uri.startswith("sqlite:") else _CLOSE_REMOTE_S
        self._run: MlflowRun | None = None

    @property
    def service(self) -> str:
        return f"MLflow at {self._uri}"

    def start(self, tags: Mapping[str, str]) -> None:
        _set_defaults()  # which MLflow reads as it is imported
        from pretrain.observe.mlflow_run import MlflowRun

        self._run = MlflowRun(self.config, self._uri, self._run_dir, tags)

    def log_metrics(self, points: Sequence[Point]) -> None:
        self._started.log_metrics(points)

    def log_artifact(self, file: File) -> None:
        self._started.log_artifact(file)

    def log_dataset(self, data: DataInput) -> None:
        self._started.log_dataset(data)

    def finish(self, status: RunStatus) -> None:
        self._started.finish(_STATUS[status])

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        id_file = RunDir(self._run_dir).tracker_run_id("mlflow")
        if not id_file.exists():
            return
        _set_defaults()
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        client, run_id, time_ms = MlflowClient(tracking_uri=self._uri), id_file.read_text().strip(), now_ms()
        metrics = [Metric(name, value, time_ms, step) for name, value in scores.items()]
        for start in range(0, len(metrics), _METRICS_PER_BATCH):
            client.log_batch(run_id, metrics[start : start + _METRICS_PER_BATCH])
        for file in files:
            client.log_artifact(run_id, str(file), folder)

    @property
    def _started(self) -> "MlflowRun":
        assert self._run is not None, "the run was started"
        return self._run


def _set_defaults() -> None:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
