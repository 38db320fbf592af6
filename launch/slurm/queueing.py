"""Jobs into the queue: their scripts are written, handed over, and what Slurm made of them is recorded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from data_pipeline.common.atomic import atomic_write
from launch import attempts
from launch.run_files import tail
from launch.slurm import client
from launch.slurm.script import BatchJob, script
from pretrain.errors import unwritable

_RECORD = "jobs.jsonl"


@dataclass(frozen=True)
class Queued:
    """A job that Slurm has taken."""

    number: str
    name: str
    log: str
    """where it will be; of an array, that of its task N"""
    records: str
    """directory of its attempts"""


def chain(jobs: Sequence[BatchJob], dependency: str | None = None) -> list[Queued]:
    """Submits jobs of which each begins once the one before it has ended well; the first waits for `dependency`, as
    Slurm writes it. Raises RunError where a script can't be written, ConfigError with what Slurm says against one."""
    queued: list[Queued] = []
    for job in jobs:
        if queued:
            dependency = f"afterok:{queued[-1].number}"
        write(job)
        number = client.submit(str(job.path), dependency)
        queued.append(Queued(number, job.name, str(job.log(number)), str(job.records)))
        _record(job, queued[-1])
    return queued


def write(job: BatchJob) -> None:
    """The script, and the folder for its log, which Slurm does not make. Raises RunError."""
    try:
        job.logs.mkdir(parents=True, exist_ok=True)
        atomic_write(job.path, script(job).encode())
        attempts.allow(job.records)
    except OSError as error:
        raise unwritable(job.path, error) from None


def folder(path: Path) -> Path | None:
    """Where records are: of a run that was launched, in it; of an array or a build, the folder itself."""
    own = path / "launch"
    if (path / _RECORD).exists() and not (own / _RECORD).exists():
        return path
    return own if own.is_dir() else None


def queued(directory: Path) -> list[Queued]:
    """Those that were submitted from a job's directory, oldest first."""
    names = list(Queued.__dataclass_fields__)
    lines = [line for line in tail(directory / _RECORD) if set(names) <= line.keys()]
    return [Queued(**{name: line[name] for name in names}) for line in lines]


def _record(job: BatchJob, queued: Queued) -> None:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    with (job.directory / _RECORD).open("ab") as file:
        file.write(json.dumps({"time": time, **vars(queued)}).encode() + b"\n")
