"""The run's own record: one JSON line per step in metrics.jsonl, one per event in events.jsonl.

The files belong to the one rank that reports. A reader may follow them while the run goes on.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import write_whole
from pretrain.errors import unwritable


@dataclass(frozen=True)
class StepMetrics:
    """One line of metrics.jsonl: a step of the whole run, whatever its layout."""

    step: int
    """optimizer steps done, this one included"""
    loss: float
    """mean over the loss-bearing tokens of the global batch, nats"""
    grad_norm: float
    """global norm before clipping"""
    learning_rate: float
    tokens: int
    """tokens seen since the start of training"""
    samples: int
    """sequences seen since the start of training"""
    data_hash: str
    """digest of the ids of the samples in the global batch, in order"""
    step_seconds: float
    tokens_per_second: float
    """of the whole run, in this step"""
    mfu: float | None
    """model FLOPs utilization, 0 to 1; None: the device's peak is not known"""
    save_seconds: float
    """that training stood still for saving between the line before and this step; no part of step_seconds"""
    loss_scale: float | None = None
    """fp16 only; where grad_norm alone is null it was too high, and no update was made"""
    device_peak_bytes: int | None = None
    """the most that torch has allocated on a GPU so far, of the rank with most; None: no GPU"""
    host_peak_bytes: int | None = None
    """the most memory of the host that a rank's process has held so far, of the rank with most"""
    terms: Mapping[str, float] = field(default_factory=dict)
    """of a loss of several terms: the mean of each, nats"""

    def line(self) -> dict[str, Any]:
        """As it is written: a column for each value, and `loss_NAME` for each term."""
        values = asdict(self)
        return values | {f"loss_{name}": mean for name, mean in values.pop("terms").items()}


class MetricsLog:
    """Appends to metrics.jsonl. `step` is where the run continues: later lines, which a crash left behind, go away."""

    def __init__(self, run_dir: str | Path, step: int = 0) -> None:
        self._lines = _Lines(Path(run_dir) / "metrics.jsonl", keep=lambda line: line.get("step", math.inf) <= step)

    def append(self, metrics: StepMetrics) -> None:
        """Writes one line and flushes it. Values that are not finite, which JSON has no word for, become null."""
        self._lines.append(metrics.line())

    def sync(self) -> None:
        """Has the disk hold every line so far."""
        self._lines.sync()

    def close(self) -> None:
        self._lines.close()


class EventLog:
    """Appends to events.jsonl: started, planned, resumed, changed, saved, heldout, warning, stopped, failed, finished.
    For any thread."""

    def __init__(self, run_dir: str | Path) -> None:
        self._lines = _Lines(Path(run_dir) / "events.jsonl", keep=lambda line: True)

    def event(self, name: str, **facts: Any) -> None:
        """Writes one line: `time` (UTC, ISO 8601), `event` and the facts (plain values), and flushes it."""
        self._lines.append({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": name, **facts})

    def close(self) -> None:
        self._lines.close()


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in order; none if there is no such file yet."""
    return _read(Path(run_dir) / "metrics.jsonl")


def read_events(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of events.jsonl in order; none if there is no such file yet."""
    return _read(Path(run_dir) / "events.jsonl")


class _Lines:
    """A file of JSON lines that survives crashes: whole lines only, each flushed as it is written."""

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut(path, keep)
            # Binary: one locked call per line, so lines of two threads never mix.
            self._file = path.open("ab")
        except OSError as error:
            raise unwritable(path, error) from None

    def append(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(_encode(line))
            self._file.flush()
        except OSError as error:
            raise unwritable(self._path, error) from None

    def sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise unwritable(self._path, error) from None

    def close(self) -> None:
        with suppress(OSError):  # of a line that `append` has complained about
            self._file.close()


def _cut(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrites `path` without damaged lines and without those that `keep` refuses. All or nothing; always as a new
    file, so that what a rank of an earlier start still writes, which was stopped and wakes, is not in it."""
    if path.exists():
        write_whole(path, b"".join(_encode(line) for line in _read(path) if keep(line)))


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of `path`. A crash can leave a torn one, and a power cut zeros; neither is a line."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line end is unfinished
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(finite(line), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """`value` with null for numbers that are not finite, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
