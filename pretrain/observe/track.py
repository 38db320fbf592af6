"""Tracking that training never waits for: a background thread delivers points and files to the tracker of `track.kind`,
in order, in batches.

If the service fails (no server, a broken database, not installed) the run continues; one warning is given, and delivery
is retried from time to time.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from data_pipeline.common.plugins import Registry
from pretrain.config.run_config import RunConfig
from pretrain.config.track import TRACKER_NAMES
from pretrain.observe.mlflow_tracker import MlflowTracker
from pretrain.observe.points import DataInput, File, Point, now_ms
from pretrain.observe.tracker import RunStatus, Tracker
from pretrain.run_dir.records import StepMetrics

TRACKERS = Registry[type[Tracker]](TRACKER_NAMES.group, {"mlflow": MlflowTracker}, Tracker)
"""Trackers by the names that `track.kind` takes."""

_PENDING = 20_000  # points kept while the service does not take them; later ones are dropped
_GATHER_S = 1.0  # points of this long go out together
_RETRY_S = 30.0
_POINTS_PER_BATCH = 1000


class TrackerThread:
    """Delivery of one run to its tracker; a resumed run continues there. Does nothing where tracking is off.

    `warn` gets one sentence, from any thread, when the service does not take something. `tags` are facts about the
    run that are not in its config.
    """

    def __init__(self, config: RunConfig, warn: Callable[[str], None], tags: Mapping[str, str] | None = None) -> None:
        self._config, self._warn, self._tags = config, warn, dict(tags or {})
        self._tracker = TRACKERS.require(config.track.kind)(config)
        self._pending: list[Point | File | DataInput] = []
        self._left_out = 0
        self._warned = False
        self._status: RunStatus = "failed"
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._run: Tracker | None = None
        # A daemon: a server that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        if config.track.is_on:
            self._thread.start()

    def step(self, metrics: StepMetrics) -> None:
        """The numbers of one step; taken every `track.every_steps`. Returns at once."""
        if metrics.step % self._config.track.every_steps == 0:
            for name, value in metrics.line().items():
                if name != "step" and isinstance(value, (int, float)):
                    self.point(metrics.step, name, value)

    def point(self, step: int, name: str, value: float) -> None:
        """One number at one step, such as the held-out loss. Returns at once."""
        self._put(Point(name, float(value), step, now_ms()))

    def artifact(self, path: str | Path, folder: str = "") -> None:
        """A file to keep with the run, under `folder`; it is read later, so it must stay. Returns at once."""
        self._put(File(Path(path).resolve(), folder))

    def data(self, inputs: Sequence[DataInput]) -> None:
        """Records the training data. Returns at once."""
        for dataset in inputs:
            self._put(dataset)

    def close(self, status: RunStatus) -> None:
        """Delivers what is left, for a bounded time, and ends the run in the tracker."""
        if not self._thread.is_alive():
            return
        self._status = status
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join(self._tracker.close_s)
        missing = len(self._pending) + self._left_out
        if self._thread.is_alive() or missing:
            self._warn_once(f"{self._tracker.service} did not take all of the run ({missing} points or files missing)")

    def _put(self, item: Point | File | DataInput) -> None:
        if not self._config.track.is_on:
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
            except Exception as error:  # whatever goes wrong in the tracker, training continues
                self._warn_once(f"{self._tracker.service} cannot be used ({_reason(error)})")
            self._closing.wait(_RETRY_S)

    def _deliver(self) -> None:
        """Sends everything pending until `close`; items leave the list only once the tracker has them."""
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
                self._send(f"the dataset {first.name}", partial(self._run.log_dataset, first))
            elif isinstance(first, File):
                self._send(str(first.path), partial(self._run.log_artifact, first))
            else:
                self._run.log_metrics(points)
            with self._changed:
                del self._pending[: len(points) or 1]
        self._run.finish(self._status)

    def _open(self) -> Tracker:
        """Starts the tracker's run: here, in the background, as importing its library may take seconds."""
        self._tracker.start(self._tags)
        return self._tracker

    def _send(self, what: str, send: Callable[[], None]) -> None:
        """What cannot be stored must not hold up the numbers behind it."""
        try:
            send()
        except Exception as error:
            self._left_out += 1
            self._warn_once(f"{self._tracker.service} cannot store {what} ({_reason(error)})")

    def _warn_once(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            without_password = re.sub(r"//[^/@\s]*@", "//", sentence)
            self._warn(f"{without_password}; training continues, and run.dir has everything")


def keep_report(
    config: RunConfig, files: list[Path], folder: str, scores: Mapping[str, float], *, step: int,
    warn: Callable[[str], None],
) -> None:  # fmt: skip
    """Adds a report and its scores, as metrics of the weights after `step`, to a run that the tracker has already; its
    status stays what it is.

    Does nothing where tracking is off or the tracker has no such run; `warn` gets a sentence if it fails.
    """
    if not config.track.is_on:
        return
    tracker = TRACKERS.require(config.track.kind)(config)
    try:
        tracker.add_report(files, folder, scores, step)
    except Exception as error:  # whatever goes wrong in the tracker, the report is on disk
        warn(f"the report was not kept in {tracker.service.partition(' ')[0]} ({_reason(error)})")


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
