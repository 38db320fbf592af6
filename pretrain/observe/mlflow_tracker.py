"""MLflow as a tracker. mlflow itself takes seconds to import, so it is imported when the run is opened."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.observe.points import DataInput, File, Point, now_ms
from pretrain.observe.sqlite_uri import sqlite_uri
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
_EXPERIMENT_LENGTH = 500  # MLflow's own limit
_UI = "http://127.0.0.1:5000"  # of `mlflow ui`, unless it is told otherwise


class MlflowTracker(Tracker):
    """A run in MLflow, at `track.uri`."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._run_dir = Path(config.run.dir).resolve()
        self._uri = config.track.uri or sqlite_uri(self._run_dir.parent / "mlflow.db")
        self.close_s = _CLOSE_LOCAL_S if self._uri.startswith("sqlite:") else _CLOSE_REMOTE_S
        self._run: MlflowRun | None = None

    @property
    def service(self) -> str:
        return f"MLflow at {self._uri}"

    def check(self) -> None:
        experiment = self.config.track.experiment
        if not 1 <= len(experiment) <= _EXPERIMENT_LENGTH:
            raise ConfigError(
                f"track.experiment={experiment[:80]!r} is no name of an experiment of MLflow: it needs 1 to "
                f"{_EXPERIMENT_LENGTH} characters"
            )

    @property
    def link(self) -> str | None:
        """The run's page, and the command that shows it where no server runs; None on Databricks, which has other
        pages."""
        if self._run is None or self._uri.startswith(("databricks", "uc:")):
            return None
        if self._uri.startswith("http"):
            return f"MLflow: {self._uri.rstrip('/')}/{self._run.page}"
        command = shlex.join(("mlflow", "ui", "--backend-store-uri", self._uri))
        return f"MLflow: {_UI}/{self._run.page} after `{command}`"

    def start(self, tags: Mapping[str, str]) -> None:
        _set_defaults()  # which MLflow reads as it is imported
        from pretrain.observe.mlflow_run import MlflowRun

        self._run = MlflowRun(self.config, self._uri, self._run_dir, tags, self.warn)

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
        from pretrain.observe.mlflow_run import MlflowWriter, open_client

        run = MlflowWriter(open_client(self._uri), id_file.read_text().strip(), self.warn)
        run.log_report([Point(name, value, step, now_ms()) for name, value in scores.items()], files, folder)

    @property
    def _started(self) -> "MlflowRun":
        assert self._run is not None, "the run was started"
        return self._run


def _set_defaults() -> None:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
