"""Cancelling a launched run: it saves first, and is not restarted."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from launch import attempts, presence
from launch.slurm import client, queueing
from pretrain.errors import ConfigError, unwritable

_BETWEEN_S = 0.5
"""Seconds between two SIGINT; the second ends ranks without a save."""
_OPEN = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def cancel(run_dir: Path, now: bool) -> list[str]:
    """Cancels all jobs of the run (pending ones at once, running ones after they have saved, or also at once with
    `now`), or the supervisor on this machine. Returns what was done, in sentences. Raises ConfigError if no job or
    supervisor of the run exists."""
    directory = queueing.folder(run_dir)
    if directory is None:
        raise ConfigError(f"{run_dir} was not started by `pretrain launch`: end its ranks with Ctrl-C or SIGTERM")
    jobs = queueing.queued(directory)
    try:
        for records in {directory, *(Path(job.records) for job in jobs), *directory.glob("task-*")}:
            attempts.forbid(records)
    except OSError as error:
        raise unwritable(directory, error) from None
    done = [sentence for job in jobs for sentence in _end_job(job, now)]
    done += _end_here(directory, now)
    if not done:
        raise ConfigError(f"{run_dir}: no job of it is queued or running, as far as this machine can see")
    return done


def _end_job(job: queueing.Queued, now: bool) -> Iterator[str]:
    for facts in client.task_facts(job.number):
        state = facts.get("JobState", "")
        if state.startswith(_OPEN):
            gentle, name = state.startswith("RUNNING") and not now, client.name_of(facts)
            refused = client.cancel(name, "TERM" if gentle else None)
            if refused is not None:
                raise ConfigError(f"job {name} cannot be cancelled: {refused}")
            yield f"job {name} ({job.name}) " + ("saves and ends" if gentle else "is cancelled")


def _end_here(directory: Path, now: bool) -> list[str]:
    pid = presence.here(directory)
    if pid is None:
        return []
    os.kill(pid, signal.SIGINT if now else signal.SIGTERM)
    if now:
        time.sleep(_BETWEEN_S)
        os.kill(pid, signal.SIGINT)
    return [f"the supervisor here (process {pid}) " + ("is ended" if now else "has its ranks save and ends")]
