"""Status of a launched run, from its files, and from Slurm if it has a job there."""

import statistics
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launch import attempts, presence, run_progress
from launch.slurm import client, queueing
from pretrain.config.load import load
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir import heartbeat
from pretrain.run_dir.heartbeat import Heartbeat
from pretrain.run_dir.paths import CONFIG, RunDir
from pretrain.run_dir.records import newest_events, newest_metrics
from pretrain.run_length.segments import run_length

_RECENT = 50
"""Number of newest steps whose median time estimates the time left."""
_ALIVE_S = 60.0
"""Seconds since a heartbeat within which a run counts as alive."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Status of a run. Unknown values are None."""

    state: str
    """waiting, running, finished, stopped, failed, cancelled, unknown; or Slurm's own state"""
    why: str | None
    step: int
    steps: int | None
    saved: int | None
    loss: float | None
    """Loss of the newest step, nats per token."""
    tokens_per_second: float | None
    left_s: float | None
    activity: str | None
    heard_s: float | None
    """Seconds since the last heartbeat."""
    starts: int
    failures: int
    last: str | None
    """Decision of the supervisor after the newest attempt, in a sentence."""
    jobs: tuple[str, ...]
    """Slurm job ids that Slurm still has, each with its state."""


def status(run_dir: Path) -> Status:
    """Status of the run in `run_dir`. Raises ConfigError if there is none."""
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: no such run")
    known = queueing.folder(run_dir)
    files = RunDir(run_dir)
    if known is None and not (files.config.exists() or files.events.exists() or attempts.exist(run_dir)):
        raise ConfigError(f"{run_dir} holds no run, and no records of a job: name a run.dir")
    directory = known or files.launch
    records = _records(directory)
    history, steps = attempts.read(records), newest_metrics(run_dir)
    beat, found = heartbeat.read(run_dir), run_progress.progress(run_dir)
    heard_s = max(0.0, time.time() - beat.time) if beat is not None else None
    jobs, state, why = _queue_state(directory)
    if state is None and directory == run_dir and history:  # a build, which writes no events
        ending = history[-1].ending
        state, why = ("finished" if ending == "done" else "failed" if ending == "config" else ending), None
    if state is None:
        state, why = ("running", None) if presence.here(records) is not None else _file_state(run_dir, beat)
    total = _total_steps(run_dir)
    recent = [line["step_seconds"] for line in steps[-_RECENT:] if isinstance(line.get("step_seconds"), int | float)]
    left = (total - found.step) * statistics.median(recent) if total is not None and recent else None
    newest = steps[-1] if steps else {}
    return Status(
        state=state,
        why=why,
        step=found.step,
        steps=total,
        saved=found.saved,
        loss=newest.get("loss"),
        tokens_per_second=newest.get("tokens_per_second"),
        left_s=left if state == "running" else None,
        activity=beat.activity if beat is not None and state == "running" else None,
        heard_s=heard_s if state == "running" else None,
        starts=len(history),
        failures=sum(attempt.ending == "failed" for attempt in history),
        last=attempts.last_decision(records),
        jobs=jobs,
    )


def _own_jobs(directory: Path) -> list[queueing.Queued]:
    """Jobs of the run or build itself, oldest first. Those of commands before and after a run have folders of records
    within that of the run's own; a build's has one within the folder of the job."""
    jobs = queueing.queued(directory)
    return [job for job in jobs if Path(job.records).name == directory.name] or jobs


def _records(directory: Path) -> Path:
    """Folder of the attempts."""
    names = {Path(job.records).name for job in _own_jobs(directory)[-1:]} - {directory.name}
    return directory / names.pop() if names else directory


def _queue_state(directory: Path) -> tuple[tuple[str, ...], str | None, str | None]:
    """Jobs with their states in Slurm; and of the run's own, not of the commands before and after it, the state of the
    newest that has not ended, and the reason for that state."""
    named, state, why = [], None, None
    own = _own_jobs(directory)
    for job in queueing.queued(directory):
        try:
            facts = client.job_facts(job.number)
        except (ConfigError, RunError):  # no Slurm here: only the files count
            return (), None, None
        if not facts:
            continue
        job_state = facts.get("JobState", "unknown")
        where = facts.get("NodeList", "(null)")
        named.append(f"{job.number} ({job.name}): {job_state}" + (f" on {where}" if where != "(null)" else ""))
        if job not in own:
            continue
        if job_state in ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"):
            state, why = "waiting", facts.get("Reason")
        elif job_state in ("RUNNING", "COMPLETING"):
            state, why = "running", None
    return tuple(named), state, why


def _file_state(run_dir: Path, beat: Heartbeat | None) -> tuple[str, str | None]:
    endings = ("finished", "stopped", "failed")
    last = next((event for event in reversed(newest_events(run_dir)) if event["event"] in endings), None)
    ended = datetime.fromisoformat(last["time"]).timestamp() if last is not None else 0.0
    if beat is not None and beat.time > max(ended, time.time() - _ALIVE_S):
        return "running", None
    if attempts.is_forbidden(RunDir(run_dir).launch) and (last is None or last["event"] != "finished"):
        return "cancelled", None
    if last is None:
        return "unknown", "it has not started, or was killed"
    return last["event"], last.get("reason")


def _total_steps(run_dir: Path) -> int | None:
    for path in (RunDir(run_dir).config, RunDir(run_dir).launch / CONFIG):
        if path.is_file():
            try:
                with recorded_config():
                    return run_length(load(RunConfig, path))[0]
            except ConfigError:
                return None
    return None
