"""Submission of jobs: writes their scripts, submits them, and records their ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from data_pipeline.common.atomic import atomic_write
from launch import attempts, snapshot, tasks
from launch.slurm import client
from launch.slurm.script import LOGS, BatchJob, script
from pretrain.errors import ConfigError, unwritable
from pretrain.run_dir.json_lines import append_json_lines, newest_json_lines
from pretrain.run_dir.paths import RunDir

_RECORD = "jobs.jsonl"


@dataclass(frozen=True)
class Queued:
    """Job that Slurm has accepted."""

    number: str
    name: str
    log: str
    """Path of its log; for an array, that of task N."""
    records: str
    """Directory of its attempts."""


def chain(jobs: Sequence[BatchJob], dependency: str | None = None) -> list[Queued]:
    """Submits jobs, each of which starts once the one before it has succeeded; the first waits for `dependency`, in
    Slurm's syntax. Raises RunError, before any is submitted, if a file of theirs can't be written; ConfigError with
    Slurm's error."""
    for job in jobs:
        write(job)
    queued: list[Queued] = []
    for job in jobs:
        if queued:
            dependency = f"afterok:{queued[-1].number}"
        number = client.submit(str(job.path), dependency)
        queued.append(Queued(number, job.name, str(job.log(number)), str(job.records)))
        _record(job, queued[-1])
    return queued


def write(job: BatchJob) -> None:
    """Writes the script with the config or the commands that it reads, and creates the folder of its log, which Slurm
    does not. Raises RunError."""
    if job.config is not None:
        snapshot.take(job.directory, job.config)
    try:
        if job.array is not None:
            tasks.write(job.tasks_file, job.array.tasks)
        job.logs.mkdir(parents=True, exist_ok=True)
        atomic_write(job.path, script(job).encode())
        for records in (job.records, *job.records.glob("task-*")):  # those that `cancel` has marked
            attempts.allow(records)
    except OSError as error:
        raise unwritable(job.path, error) from None


def folder(path: Path) -> Path | None:
    """Folder of the records: `launch` in the directory of a run, or the folder of an array or a build itself; None:
    there are no records."""
    of_run = RunDir(path).launch
    if (path / _RECORD).exists() and not (of_run / _RECORD).exists():
        return path
    return of_run if of_run.is_dir() else None


def newest_log(path: Path) -> Path:
    """Log that was written last of the jobs of a run, an array or a build. Raises ConfigError if there is none."""
    logs = ((folder(path) or path) / LOGS).glob("*.out")
    if (newest := max(logs, key=lambda log: log.stat().st_mtime, default=None)) is None:
        raise ConfigError(
            f"{path} has no log: its job has not started, or it was not started by `pretrain launch slurm`"
        )
    return newest


def queued(directory: Path) -> list[Queued]:
    """Jobs that were submitted from a job's directory, oldest first."""
    names = list(Queued.__dataclass_fields__)
    lines = [line for line in newest_json_lines(directory / _RECORD) if set(names) <= line.keys()]
    return [Queued(**{name: line[name] for name in names}) for line in lines]


def _record(job: BatchJob, queued: Queued) -> None:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    append_json_lines(job.directory / _RECORD, {"time": time, **vars(queued)})
