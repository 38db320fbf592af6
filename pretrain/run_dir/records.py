"""Records of a run: one JSON line per step in metrics.jsonl, one per event in events.jsonl.

The rank that reports writes them. They may be read at any time, also during the run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.run_dir.experts import TOKENS_PER_EXPERT
from pretrain.run_dir.json_lines import JsonLinesWriter, append_json_lines, newest_json_lines, read_json_lines
from pretrain.run_dir.paths import RunDir

_MOMENT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One line of metrics.jsonl: a step of the run over all ranks, whatever the layout."""

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
    """pause of training for a checkpoint between the previous step and this one; not part of step_seconds"""
    loss_scale: float | None = None
    """fp16 only; if only grad_norm is null, it was too high and the update was skipped"""
    device_peak_bytes: int | None = None
    """peak memory so far that torch allocated on a GPU, on the rank with most; None: no GPU"""
    host_peak_bytes: int | None = None
    """peak resident memory so far of a rank's process, on the rank with most"""
    terms: Mapping[str, float] = field(default_factory=dict)
    """mean of each term of a loss with several terms, nats"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """figures that only some models have, by their keys"""
    tokens_per_expert: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """tokens of the global batch that chose each expert, by layer of experts"""

    def line(self) -> dict[str, Any]:
        """Returns the line of metrics.jsonl: a key for each value, those of `figures`, `loss_NAME` for each
        term, and `tokens_per_expert/LAYER` for each layer of experts."""
        values = asdict(self)
        figures, terms, experts = (values.pop(name) for name in ("figures", "terms", "tokens_per_expert"))
        line: dict[str, Any] = values | figures | {f"loss_{name}": mean for name, mean in terms.items()}
        return line | {f"{TOKENS_PER_EXPERT}{layer}": counts for layer, counts in experts.items()}


class MetricsLog(JsonLinesWriter):
    """Writer of metrics.jsonl. `step` is where the run resumes: lines of later steps, left by a crash, are removed."""

    def __init__(
        self,
        run_dir: str | Path,
        step: int = 0,
        warn: Callable[[str], None] = lambda sentence: None,
        regain: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(RunDir(run_dir).metrics, lambda line: line.get("step", math.inf) <= step, warn, regain)

    def step(self, metrics: StepMetrics) -> None:
        """Appends a step, without waiting for the disk."""
        self.append(metrics.line())


class EventLog(JsonLinesWriter):
    """Writer of events.jsonl: started, planned, resumed, changed, saved, save_failed, heldout, figures, best, warning,
    idle_experts, stopped, failed, finished."""

    def __init__(
        self,
        run_dir: str | Path,
        warn: Callable[[str], None] = lambda sentence: None,
        regain: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(RunDir(run_dir).events, lambda line: True, warn, regain)

    def event(self, name: str, **facts: Any) -> None:
        """Appends an event with its facts (plain values), and waits until it is in the file, for a second at most."""
        self.append(_event_line(name, facts))
        if not self.in_trouble:
            self.flush(_MOMENT_S)


def append_events(run_dir: str | Path, *events: tuple[str, Mapping[str, Any]]) -> None:
    """Appends events (name, facts) to events.jsonl in place of the rank that usually writes it. Raises OSError."""
    append_json_lines(RunDir(run_dir).events, *(_event_line(name, facts) for name, facts in events))


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl, oldest first; none if the file is missing."""
    return read_json_lines(RunDir(run_dir).metrics)


def read_events(run_dir: str | Path) -> list[dict[str, Any]]:
    """Lines of events.jsonl, oldest first; none if the file is missing."""
    return read_json_lines(RunDir(run_dir).events)


def newest_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Last lines of metrics.jsonl, oldest first; none if the file is missing or cannot be read."""
    return [line for line in newest_json_lines(RunDir(run_dir).metrics) if isinstance(line.get("step"), int)]


def newest_events(run_dir: str | Path) -> list[dict[str, Any]]:
    """Last lines of events.jsonl, oldest first; none if the file is missing or cannot be read."""
    return [line for line in newest_json_lines(RunDir(run_dir).events) if isinstance(line.get("event"), str)]


def _event_line(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Adds `time` (UTC, ISO 8601) and `event` to the facts."""
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": name, **facts}
