"""Attempts of a job, one line each in `attempts.jsonl`: steps, exit status, and what the supervisor did next."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from data_pipeline.common.atomic import atomic_write
from data_pipeline.errors import ExitStatus
from pretrain.run_dir.json_lines import append_json_lines, newest_json_lines

Ending = Literal["done", "stopped", "config", "failed"]
_ATTEMPTS, _CANCELLED = "attempts.jsonl", "cancelled"
_ENDINGS: dict[int, Ending] = {
    ExitStatus.DONE: "done",
    ExitStatus.BAD_USAGE: "config",
    ExitStatus.STOPPED: "stopped",
}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run of the job's command, from its start to its end."""

    began: str
    """UTC, ISO 8601"""
    ended: str
    status: int
    """Exit status; 128 + number where a signal ended it."""
    step: int = 0
    """Optimizer steps recorded when it ended."""
    saved: int | None = None
    """Step of the newest checkpoint when it ended."""
    reason: str | None = None
    """Error that it reported; None: none."""
    job: str | None = None
    """Slurm job id; None: no Slurm."""
    nodes: str | None = None
    """Names of the nodes, as Slurm lists them."""
    bad_nodes: Sequence[str] = ()
    """Nodes that preflight tests refused, or that computed wrong."""

    @property
    def ending(self) -> Ending:
        return _ENDINGS.get(self.status, "failed")


def read(directory: Path) -> list[Attempt]:
    """Attempts recorded in a job's directory, oldest first. Lines of a newer version are skipped."""
    names = set(Attempt.__dataclass_fields__)
    lines = [line for line in _lines(directory) if {"began", "ended", "status"} <= line.keys()]
    return [Attempt(**{name: value for name, value in line.items() if name in names}) for line in lines]


def exist(directory: Path) -> bool:
    """Whether a job's directory has a record of attempts."""
    return (directory / _ATTEMPTS).exists()


def last_decision(directory: Path) -> str | None:
    """Decision of the supervisor after the newest attempt, in a sentence; None: nothing is recorded."""
    lines = _lines(directory)
    return lines[-1].get("then") if lines else None


def append(directory: Path, attempt: Attempt, then: str) -> None:
    """Records an attempt, and what the supervisor did `then`. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    append_json_lines(directory / _ATTEMPTS, {**asdict(attempt), "ending": attempt.ending, "then": then})


def forbid(directory: Path) -> None:
    """Marks the job as cancelled, so that it is not requeued when it stops. Raises OSError."""
    atomic_write(directory / _CANCELLED, b"")


def allow(directory: Path) -> None:
    """Removes the mark of `forbid`, as the job is launched again. Raises OSError."""
    (directory / _CANCELLED).unlink(missing_ok=True)


def is_forbidden(directory: Path) -> bool:
    """Whether the job was cancelled since it was launched."""
    return (directory / _CANCELLED).exists()


def _lines(directory: Path) -> list[dict[str, Any]]:
    return newest_json_lines(directory / _ATTEMPTS)
