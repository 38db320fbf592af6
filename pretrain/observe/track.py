"""MLflow tracking that training never waits for: a background thread delivers points and files, in order, in batches.

Without MLflow (no server, a broken database, not installed) the run continues; one warning is given, and delivery is
retried from time to time.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretrain.config.run_config import RunConfig
from pretrain.observe.points import DataInput, File, Point
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import StepMetrics

if TYPE_CHECKING:
    from pretrain.observe.mlflow_run import MlflowRun

_PENDING = 20_000  # points kept while MLflow does not take them; later ones are left out
_GATHER_S = 1.0  # points of this long go out together
_RETRY_S = 30.0
# How long `close` waits. A local database answers in the end, a server may not; creating the tables takes seconds.
_CLOSE_LOCAL_S, _CLOSE_REMOTE_S = 60.0, 8.0
_POINTS_PER_BATCH = 1000  # MLflow's own limit
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_SETTINGS = {  # MLflow's defaults wait for many minutes; what the user has set stays
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Tracker:
    """One run in MLflow; a resumed run continues the same one. Does nothing where `track.mlflow` is false.

    `warn` gets one sentence when MLflow does not take what it is given, from any thread. `tags` are facts about the
    run that are not in its config.
    """

    def __init__(self, config: RunConfig, warn: Callable[[str], None], tags: Mapping[str, str] | None = None) -> None:
        self._config, self._warn, self._tags = config, warn, dict(tags or {})
        self._run_dir = Path(config.run.dir).resolve()
        self._uri = _uri(config)
        self._pending: list[Point | File | DataInput] = []
        self._left_out = 0
        self._warned = False
        self._status = _STATUS["failed"]
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._run: MlflowRun | None = None
        # A daemon: a server that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        if config.track.mlflow:
            self._thread.start()

    def step(self, metrics: StepMetrics) -> None:
        """The numbers of one step; taken every `track.every_steps`. Returns at once."""
        if metrics.step % self._config.track.every_steps == 0:
            for name, value in metrics.line().items():
                if name != "step" and isinstance(value, (int, float)):
                    self.point(metrics.step, name, value)

    def point(self, step: int, name: str, value: float) -> None:
        """One number at one step, such as the held-out loss. Returns at once."""
        self._put(Point(name, float(value), step, _now_ms()))

    def artifact(self, path: str | Path, folder: str = "") -> None:
        """A file to keep with the run, under `folder`; it is read later, so it must stay. Returns at once."""
        self._put(File(Path(path).resolve(), folder))

    def data(self, inputs: Sequence[DataInput]) -> None:
        """What the run is trained on. Returns at once."""
        for one in inputs:
            self._put(one)

    def close(self, status: Literal["finished", "stopped", "failed"]) -> None:
        """Delivers what is left, for a bounded time, and ends the run in MLflow."""
        if not self._thread.is_alive():
            return
        self._status = _STATUS[status]
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join(_CLOSE_LOCAL_S if self._uri.startswith("sqlite:") else _CLOSE_REMOTE_S)
        missing = len(self._pending) + self._left_out
        if self._thread.is_alive() or missing:
            self._warn_once(f"MLflow at {self._uri} did not take all of the run ({missing} points or files missing)")

    def _put(self, item: Point | File | DataInput) -> None:
        if not self._config.track.mlflow:
            return
        with self._changed:
            if len(self._pending) < _PENDING:
                self._pending.append(item)
                self._changed.notify()
            else:
                self._left_out += 1

    def _work(self) -> None:
        last_try = False
        while not last_try:
            last_try = self._closing.is_set()
            try:
                self._deliver()
                return
            except Exception as error:  # whatever goes wrong in MLflow, training continues
                self._warn_once(f"MLflow at {self._uri} cannot be used ({_reason(error)})")
            self._closing.wait(_RETRY_S)

    def _deliver(self) -> None:
        """Sends everything pending until `close`; items leave the list only once MLflow has them."""
        if self._run is None:
            self._run = self._open()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing.is_set())
                if not self._pending:
                    break
            self._closing.wait(_GATHER_S)
            with self._changed:
                first, points = self._pending[0], _leading_points(self._pending[:_POINTS_PER_BATCH])
            if isinstance(first, DataInput):
                self._send(f"the dataset {first.name}", partial(self._run.send_data, first))
            elif isinstance(first, File):
                self._send(str(first.path), partial(self._run.send_file, first))
            else:
                self._run.send(points)
            with self._changed:
                del self._pending[: len(points) or 1]
        self._run.end(self._status)

    def _open(self) -> "MlflowRun":
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        # Reads the settings as it is imported, and takes seconds: so here, in the background.
        from pretrain.observe.mlflow_run import MlflowRun

        return MlflowRun(self._config, self._uri, self._run_dir, self._tags)

    def _send(self, what: str, send: Callable[[], None]) -> None:
        """What cannot be stored must not hold up the numbers behind it."""
        try:
            send()
        except Exception as error:
            self._left_out += 1
            self._warn_once(f"MLflow at {self._uri} cannot store {what} ({_reason(error)})")

    def _warn_once(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            without_password = re.sub(r"//[^/@\s]*@", "//", sentence)
            self._warn(f"{without_password}; training continues, and run.dir has everything")


def keep_report(
    config: RunConfig, files: list[Path], folder: str, scores: Mapping[str, float], step: int,
    warn: Callable[[str], None],
) -> None:  # fmt: skip
    """Adds a report and the scores in it, as metrics of the weights after `step`, to a run that MLflow knows already;
    its status stays what it is.

    Does nothing where `track.mlflow` is false or the run never came to MLflow; `warn` gets a sentence if it fails.
    """
    id_file = RunDir(config.run.dir).tracker_run_id("mlflow")
    if not config.track.mlflow or not id_file.exists():
        return
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        client, run_id, now_ms = MlflowClient(tracking_uri=_uri(config)), id_file.read_text().strip(), _now_ms()
        metrics = [Metric(name, value, now_ms, step) for name, value in scores.items()]
        for start in range(0, len(metrics), _POINTS_PER_BATCH):
            client.log_batch(run_id, metrics[start : start + _POINTS_PER_BATCH])
        for file in files:
            client.log_artifact(run_id, str(file), folder)
    except Exception as error:  # whatever goes wrong in MLflow, the report is there
        warn(f"the report was not kept in MLflow ({_reason(error)})")


def _uri(config: RunConfig) -> str:
    return config.track.uri or f"sqlite:///{Path(config.run.dir).resolve().parent / 'mlflow.db'}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _leading_points(items: list[Point | File | DataInput]) -> list[Point]:
    points = []
    for item in items:
        if not isinstance(item, Point):
            break
        points.append(item)
    return points


def _reason(error: BaseException) -> str:
    """One short line: the operating system's own word (connection refused) where it began with one."""
    root = error
    while root.__context__ is not None:
        root = root.__context__
    reason = str(root if isinstance(root, OSError) else error).strip() or type(error).__name__
    return reason.splitlines()[0][:200]
