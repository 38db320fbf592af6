"""TensorBoard as a tracker: event files in `run.dir/tensorboard`, written by the package `tensorboard` without
TensorFlow. It is imported when the run is opened.

    tensorboard --logdir runs      # the curves of every run below runs/
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.config.load import dump
from pretrain.config.run_config import RunConfig
from pretrain.observe.points import DataInput, File, Point, now_ms
from pretrain.observe.tracker import RunStatus, Tracker, public
from pretrain.run_dir.paths import RunDir

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter


class TensorBoardTracker(Tracker):
    """Event files of a run. TensorBoard keeps numbers and texts: no files, and no state of a run."""

    package, extra = "tensorboard", "tensorboard"
    close_s = 20.0

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._folder = RunDir(config.run.dir).tensorboard
        self._file: RecordWriter | None = None
        self._texts: dict[str, str] = {}

    @property
    def service(self) -> str:
        return f"TensorBoard in {self._folder}"

    def start(self, tags: Mapping[str, str]) -> None:
        import tensorboard.compat.proto.event_pb2  # noqa: F401

        facts = "".join(f"    {name}: {value}\n" for name, value in tags.items())
        self._texts = {"config": _indented(dump(public(self.config))), "facts": facts}

    def log_metrics(self, points: Sequence[Point]) -> None:
        try:
            if self._file is None:
                # Points of later steps in older files are of steps that are made again: TensorBoard drops them.
                self._file = self._open(purge_from=points[0].step)
                for name, text in self._texts.items():
                    self._write(_text(name, text), points[0].step, now_ms())
            for point in points:
                self._write(_scalar(point.name, point.value), point.step, point.time_ms)
            self._file.flush()
        except BaseException:
            self._file = None  # the rest goes to a new file
            raise

    def log_artifact(self, file: File) -> None:
        pass

    def log_dataset(self, data: DataInput) -> None:
        profile = "".join(f"    {name}: {value}\n" for name, value in data.profile.items())
        self._texts[f"data/{data.name}"] = f"    {data.address}\n    fingerprint: {data.fingerprint}\n{profile}"
        if self._file is not None:
            self._write(_text(f"data/{data.name}", self._texts[f"data/{data.name}"]), 0, now_ms())
            self._file.flush()

    def finish(self, status: RunStatus) -> None:
        if self._file is not None:
            self._file.close()

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        if not self._folder.is_dir():
            return
        self._file = self._open()
        for name, value in scores.items():
            self._write(_scalar(name, value), step, now_ms())
        self._file.close()

    def _open(self, purge_from: int | None = None) -> "RecordWriter":
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020d}.{os.uname().nodename}.{os.getpid()}"
        # TensorBoard reads files in the order of their names.
        file = RecordWriter((self._folder / name).open("xb"))
        file.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if purge_from is not None:
            started = SessionLog(status=SessionLog.START)
            file.write(Event(wall_time=time.time(), step=purge_from, session_log=started).SerializeToString())
        return file

    def _write(self, value: Any, step: int, time_ms: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._file is not None, "the file is open"
        event = Event(wall_time=time_ms / 1000, step=step, summary=Summary(value=[value]))
        self._file.write(event.SerializeToString())


def _scalar(name: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=name, simple_value=value)


def _text(name: str, text: str) -> Any:
    """A text, which TensorBoard shows as Markdown."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    return Summary.Value(tag=name, metadata=shown, tensor=tensor)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
