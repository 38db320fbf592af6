"""Tracking that training never waits for: a background thread for each tracker of `track.kind` delivers points and
files to it, in order, in batches. None of them waits for another.

If a service fails (no server, a broken database) the run continues; one warning is given, and delivery is retried from
time to time. A package that is not installed is refused before the run starts (`check_trackers`).
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from data_pipeline.common.plugins import Registry
from pretrain.config.run_config import RunConfig
from pretrain.config.track import TRACKER_NAMES
from pretrain.errors import ConfigError
from pretrain.observe.mlflow_tracker import MlflowTracker
from pretrain.observe.points import DataInput, File, Point, PointSet, now_ms
from pretrain.observe.tensorboard_tracker import TensorBoardTracker
from pretrain.observe.tracker import RefusedError, RunStatus, Tracker, send_allowed, without_password
from pretrain.observe.wandb_tracker import WandbTracker
from pretrain.run_dir.experts import TOKENS_PER_EXPERT
from pretrain.run_dir.records import StepMetrics

TRACKERS = Registry[type[Tracker]](
    TRACKER_NAMES.group,
    {"mlflow": MlflowTracker, "tensorboard": TensorBoardTracker, "wandb": WandbTracker},
    Tracker,
)
"""Trackers by the names that `track.kind` takes."""

_Item = Point | PointSet | File | DataInput
_PENDING = 20_000  # points kept while the service does not take them; later ones are dropped
_GATHER_S = 1.0  # points of this long go out together
_RETRY_S = 30.0
_POINTS_PER_BATCH = 1000
_REPORT_S = 60.0


def check_trackers(config: RunConfig) -> None:
    """Raises ConfigError for a tracker whose package is not installed, or that would refuse its settings. Imports
    none."""
    for name in config.track.names:
        tracker = TRACKERS.require(name)
        try:
            if tracker.package is not None:
                version(tracker.package)
        except PackageNotFoundError:
            install = f"pretrain[{tracker.extra}]" if tracker.extra else tracker.package
            raise ConfigError(
                f"track.kind={name} needs the package {tracker.package}, which is not installed: run `pip install "
                f"'{install}'`, or leave {name} out"
            ) from None
        tracker(config).check()


class Trackers:
    """Delivery of one run to its trackers; a resumed run continues there. Does nothing where tracking is off.

    `warn` gets one sentence for each service, from any thread, when it does not take something. `tags` are facts about
    the run that are not in its config.
    """

    def __init__(self, config: RunConfig, warn: Callable[[str], None], tags: Mapping[str, str] | None = None) -> None:
        self._every_steps = config.track.every_steps
        trackers = [TRACKERS.require(name)(config) for name in config.track.names]
        self._threads = [TrackerThread(tracker, warn, dict(tags or {})) for tracker in trackers]

    def step(self, metrics: StepMetrics) -> None:
        """The numbers of one step; taken every `track.every_steps`. Returns at once."""
        if metrics.step % self._every_steps == 0:
            for name, value in metrics.line().items():
                if name != "step" and isinstance(value, (int, float)):
                    self.point(metrics.step, name, value)
            if metrics.tokens_per_expert:
                self._put(PointSet(tuple(_points_of_experts(metrics))))

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
        """Delivers what is left, for a bounded time, and ends the run in each service."""
        started_s = time.monotonic()
        for thread in self._threads:
            thread.end(status)
        for thread in self._threads:
            thread.join(started_s)

    def links(self) -> list[str]:
        """Where the services show the run, a line each, as far as they took it and say so; after `close`."""
        return [without_password(link) for thread in self._threads if (link := thread.tracker.link) is not None]

    def _put(self, item: _Item) -> None:
        for thread in self._threads:
            thread.put(item)


class TrackerThread:
    """Delivery of one run to one `tracker`. See `Trackers`."""

    def __init__(self, tracker: Tracker, warn: Callable[[str], None], tags: Mapping[str, str]) -> None:
        self.tracker, self._warn, self._tags = tracker, warn, tags
        self._pending: list[_Item] = []
        self._left_out = 0
        self._warned: set[str] = set()
        self._said: set[str] = set()
        tracker.warn = self._say
        self._status: RunStatus = "failed"
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._run: Tracker | None = None
        # A daemon: a server that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def put(self, item: _Item) -> None:
        """Queues an item. Returns at once."""
        with self._changed:
            if len(self._pending) < _PENDING:
                self._pending.append(item)
                self._changed.notify()
            else:
                self._left_out += 1

    def end(self, status: RunStatus) -> None:
        """Has the thread deliver what is left and end. Returns at once."""
        self._status = status
        with self._changed:
            self._closing.set()
            self._changed.notify()

    def join(self, started_s: float) -> None:
        """Waits for the end, until the tracker's `close_s` after `started_s` (monotonic)."""
        self._thread.join(max(0.0, started_s + self.tracker.close_s - time.monotonic()))
        missing = len(self._pending) + self._left_out
        if self._thread.is_alive() or missing:
            self._warn_once(f"{self.tracker.service} did not take all of the run ({missing} points or files missing)")

    def _work(self) -> None:
        last_try = False
        while not last_try:
            last_try = self._closing.is_set()
            try:
                self._deliver()
                return
            except Exception as error:  # whatever goes wrong in the tracker, training continues
                self._warn_once(f"{self.tracker.service} cannot be used ({_reason(error)})")
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
            rest: list[_Item] = []
            if isinstance(first, DataInput):
                self._send(f"the dataset {first.name}", partial(self._run.log_dataset, first))
            elif isinstance(first, PointSet):
                send_allowed(self._run.log_metrics, first.points[:_POINTS_PER_BATCH], self._refuse)
                if later := first.points[_POINTS_PER_BATCH:]:
                    rest = [PointSet(later)]
            elif isinstance(first, File):
                self._send(str(first.path), partial(self._run.log_artifact, first))
            else:
                send_allowed(self._run.log_metrics, points, self._refuse)
            with self._changed:
                self._pending[: len(points) or 1] = rest
        self._run.finish(self._status)

    def _open(self) -> Tracker:
        """Starts the tracker's run: here, in the background, as importing its library may take seconds."""
        self.tracker.start(self._tags)
        return self.tracker

    def _send(self, what: str, send: Callable[[], None]) -> None:
        """Calls `send`, which stores `what`. An error is counted, and warned of once: it must not hold up the numbers
        behind it."""
        try:
            send()
        except Exception as error:
            self._left_out += 1
            self._warn_once(f"{self.tracker.service} cannot store {what} ({_reason(error)})")

    def _refuse(self, point: Point, error: RefusedError) -> None:
        self._warn_once(f"{self.tracker.service} does not take {point.name} ({_reason(error)})", "refused")

    def _warn_once(self, sentence: str, subject: str = "service") -> None:
        """Warns, the first time that a sentence has this subject."""
        if subject not in self._warned:
            self._warned.add(subject)
            self._say(f"{sentence}; training continues, and run.dir has everything")

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:  # a tracker that is started again says it again
            self._said.add(sentence)
            self._warn(without_password(sentence))


def keep_report(
    config: RunConfig, files: list[Path], folder: str, scores: Mapping[str, float], *, step: int,
    warn: Callable[[str], None],
) -> None:  # fmt: skip
    """Adds a report and its scores, as metrics of the weights after `step`, to a run that its trackers have already.
    The run's status stays what it is.

    Does nothing where tracking is off or a tracker has no such run; `warn` gets a sentence for each that fails or does
    not answer within a minute.
    """
    for name in config.track.names:
        tracker = TRACKERS.require(name)(config)
        tracker.warn = warn
        failed: list[Exception] = []
        add = partial(tracker.add_report, files, folder, scores, step)
        thread = threading.Thread(target=_attempt, args=(add, failed), name=f"report to {name}", daemon=True)
        thread.start()
        thread.join(max(_REPORT_S, tracker.close_s))
        if thread.is_alive() or failed:
            reason = _reason(failed[0]) if failed else "it does not answer"
            warn(f"the report was not kept in {tracker.service.partition(' ')[0]} ({reason})")


def _attempt(add: Callable[[], None], failed: list[Exception]) -> None:
    try:
        add()
    except Exception as error:  # whatever goes wrong in the tracker, the report is on disk
        failed.append(error)


def _points_of_experts(metrics: StepMetrics) -> Iterator[Point]:
    """The tokens of each expert: `tokens_per_expert/LAYER/EXPERT`, in names that sort as their numbers do."""
    time_ms = now_ms()
    for layer, counts in metrics.tokens_per_expert.items():
        digits = len(str(len(counts) - 1))
        for expert, count in enumerate(counts):
            yield Point(f"{TOKENS_PER_EXPERT}{layer}/{expert:0{digits}}", float(count), metrics.step, time_ms)


def _leading_points(items: list[_Item]) -> list[Point]:
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
