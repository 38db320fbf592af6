"""The run's own record: one JSON line per step in metrics.jsonl, one per event in events.jsonl.

The files belong to the one rank that reports. A reader may follow them during the run.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.observe.lines import Lines, read_lines

_MOMENT_S = 1.0


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
    """over all ranks, in this step"""
    mfu: float | None
    """model FLOPs utilization, 0 to 1; None: the device's peak is not known"""
    save_seconds: float
    """for which training paused to save between the previous line and this step; not part of step_seconds"""
    loss_scale: float | None = None
    """fp16 only; where grad_norm alone is null it was too high, and no update was made"""
    device_peak_bytes: int | None = None
    """the most that torch has allocated on a GPU so far, of the rank with most; None: no GPU"""
    host_peak_bytes: int | None = None
    """the most memory of the host that a rank's process has held so far, of the rank with most"""
    terms: Mapping[str, float] = field(default_factory=dict)
    """mean of each term of a loss with several, nats"""

    def line(self) -> dict[str, Any]:
        """The line in metrics.jsonl: a column for each value, and `loss_NAME` for each term."""
        values = asdict(self)
        return values | {f"loss_{name}": mean for name, mean in values.pop("terms").items()}


class MetricsLog(Lines):
    """Appends to metrics.jsonl. `step` is where the run continues: later lines, which a crash left behind, go away."""

    def __init__(
        self,
        run_dir: str | Path,
        step: int = 0,
        warn: Callable[[str], None] = lambda sentence: None,
        regain: Callable[[], None] = lambda: None,
    ) -> None:
        path = Path(run_dir) / "metrics.jsonl"
        super().__init__(path, lambda line: line.get("step", math.inf) <= step, warn, regain)

    def step(self, metrics: StepMetrics) -> None:
        """One line, which is in the file within moments if the disk takes it."""
        self.append(metrics.line())


class EventLog(Lines):
    """Appends to events.jsonl: started, planned, resumed, changed, saved, save_failed, heldout, warning, stopped,
    failed, finished."""

    def __init__(
        self,
        run_dir: str | Path,
        warn: Callable[[str], None] = lambda sentence: None,
        regain: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(Path(run_dir) / "events.jsonl", lambda line: True, warn, regain)

    def event(self, name: str, **facts: Any) -> None:
        """One line: `time` (UTC, ISO 8601), `event` and the facts (plain values). It is in the file on return, unless
        the disk takes longer than a second."""
        self.append({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": name, **facts})
        if not self.in_trouble:
            self.flush(_MOMENT_S)


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in order; none if there is no such file yet."""
    return read_lines(Path(run_dir) / "metrics.jsonl")


def read_events(run_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of events.jsonl in order; none if there is no such file yet."""
    return read_lines(Path(run_dir) / "events.jsonl")
