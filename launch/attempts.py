"""The starts of a job, one line each in `attempts.jsonl`: what each reached, how it ended, and what was done then."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from data_pipeline.common.atomic import atomic_write
from data_pipeline.errors import ExitStatus
from launch.run_files import tail

Ending = Literal["done", "stopped", "config", "failed"]
_CANCELLED = "cancelled"
_OF_STATUS: dict[int, Ending] = {
    ExitStatus.DONE: "done",
    ExitStatus.BAD_USAGE: "config",
    ExitStatus.STOPPED: "stopped",
}


@dataclass(frozen=True)
class Attempt:
    """One start of the job's command, after its end."""

    began: str
    """UTC, ISO 8601"""
    ended: str
    status: int
    """exit status; 128 + number where a signal ended it"""
    step: int = 0
    """optimizer steps recorded when it ended"""
    saved: int | None = None
    """step of the newest checkpoint then"""
    reason: str | None = None
    """what it said of its failure; None: nothing"""
    job: str | None = None
    """Slurm's number; None: no Slurm"""
    nodes: str | None = None
    """Slurm's list of their names"""
    bad_nodes: Sequence[str] = ()
    """of which tests said that the run is not to start on them"""

    @property
    def ending(self) -> Ending:
        return _OF_STATUS.get(self.status, "failed")


def read(directory: Path) -> list[Attempt]:
    """Those recorded in a job's directory, oldest first. Lines of a newer version are left out."""
    names = set(Attempt.__dataclass_fields__)
    lines = [line for line in tail(directory / "attempts.jsonl") if {"began", "ended", "status"} <= line.keys()]
    return [Attempt(**{name: value for name, value in line.items() if name in names}) for line in lines]


def append(directory: Path, attempt: Attempt, then: str) -> None:
    """Records it, and what was done `then`. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    line = {**asdict(attempt), "ending": attempt.ending, "then": then}
    with (directory / "attempts.jsonl").open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")


def forbid(directory: Path) -> None:
    """From now on a stop of the job is for good. Raises OSError."""
    atomic_write(directory / _CANCELLED, b"")


def allow(directory: Path) -> None:
    """The job is launched anew. Raises OSError."""
    (directory / _CANCELLED).unlink(missing_ok=True)


def is_forbidden(directory: Path) -> bool:
    """Whether it was cancelled since."""
    return (directory / _CANCELLED).exists()
