"""Progress and failures of a run, read from the files in its directory, which is all that other machines see."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pretrain.run_dir.paths import RunDir, checkpoint_step, complete_checkpoints
from pretrain.run_dir.records import newest_events, newest_metrics

HUNG = "HungError"


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run."""

    step: int
    """Optimizer steps recorded; 0: none."""
    saved: int | None
    """Step of the newest complete checkpoint; None: there is none."""


def progress(run_dir: Path) -> RunProgress:
    """Progress that is on the disk now. A missing directory is a run that has not started."""
    lines = newest_metrics(run_dir)
    return RunProgress(lines[-1]["step"] if lines else 0, newest_checkpoint(run_dir))


def newest_checkpoint(run_dir: Path) -> int | None:
    """Step of the newest complete checkpoint; None: there is none, or the folder cannot be read."""
    try:
        complete = complete_checkpoints(RunDir(run_dir).checkpoints)
    except OSError:
        return None
    return checkpoint_step(complete[-1].name) if complete else None


def events(run_dir: Path, since: datetime) -> list[dict[str, Any]]:
    """Newest events from `since` on, oldest first."""
    return [event for event in newest_events(run_dir) if _time(event) >= since]


def failure(run_dir: Path, since: datetime) -> str | None:
    """Error that the run reported since then; None: it reported none. The error of a hang begins with HUNG."""
    found = events(run_dir, since)
    reasons = [event.get("reason") for event in found if event["event"] == "failed"]
    reason = next((reason for reason in reversed(reasons) if isinstance(reason, str)), None)
    hung = any(event["event"] == "hung" for event in found)
    return f"{HUNG}: {reason or 'the run hangs'}" if hung else reason


def found_to_hang(run_dir: Path, since: datetime) -> datetime | None:
    """Time at which the run reported a hang since then; None: it did not."""
    return next((_time(event) for event in events(run_dir, since) if event["event"] == "hung"), None)


def bad_nodes(run_dir: Path, since: datetime) -> tuple[str, ...]:
    """Nodes that preflight tests have refused since then, or the one that computed a step wrong
    (`health.replay_every`)."""
    found = events(run_dir, since)
    tested = [event.get("refused") for event in found if event["event"] == "preflight"]
    refused = tuple(str(node) for node in tested[-1]) if tested and isinstance(tested[-1], list) else ()
    named = [event.get("hosts") for event in found if event["event"] == "miscomputed"]
    wrong = named[-1] if named else None  # of several hosts, all but one may be well
    return (*refused, str(wrong[0])) if isinstance(wrong, list) and len(wrong) == 1 else refused


def _time(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])
