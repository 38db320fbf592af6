"""Tracks a run in a CSV file beside its directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pretrain.observe.points import DataInput, File, Point
from pretrain.observe.tracker import RunStatus, Tracker


class CsvTracker(Tracker):
    @property
    def service(self) -> str:
        return f"CSV at {self._path}"

    def start(self, tags: Mapping[str, str]) -> None:
        self._write("start", self.config.run.name, tags["layout"])

    def log_metrics(self, points: Sequence[Point]) -> None:
        for point in points:
            self._write("metric", point.step, point.name, point.value)

    def log_artifact(self, file: File) -> None:
        self._write("artifact", file.path.name)

    def log_dataset(self, data: DataInput) -> None:
        self._write("dataset", data.name)

    def finish(self, status: RunStatus) -> None:
        self._write("finish", status)

    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        for name, value in scores.items():
            self._write("score", step, name, value)

    @property
    def _path(self) -> Path:
        return Path(f"{self.config.run.dir}.csv")

    def _write(self, *values: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(",".join(map(str, values)) + "\n")
