"""Progress of a run by the files in its directory, which is all that another process or machine sees of it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

_TAIL_BYTES = 2**18
"""Bytes read from the end of a file that grows with the run: hundreds of lines."""
HUNG = "HungError"
_COMPLETE = re.compile("step-([0-9]+)")


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run."""

    step: int
    """Optimizer steps recorded; 0: none."""
    saved: int | None
    """Step of the newest complete checkpoint; None: there is none."""


def progress(run_dir: Path) -> RunProgress:
    """Progress that is on the disk now. A missing directory is a run that has not started."""
    lines = metrics(run_dir)
    return RunProgress(lines[-1]["step"] if lines else 0, newest_checkpoint(run_dir))


def newest_checkpoint(run_dir: Path) -> int | None:
    """Step of the newest complete checkpoint; None: there is none."""
    try:
        names = [path.name for path in (run_dir / "checkpoints").iterdir()]
    except OSError:
        return None
    return max((int(found[1]) for name in names if (found := _COMPLETE.fullmatch(name))), default=None)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The last steps, oldest first."""
    return [line for line in tail(run_dir / "metrics.jsonl") if isinstance(line.get("step"), int)]


def events(run_dir: Path, since: datetime | None = None) -> list[dict[str, Any]]:
    """The last events, oldest first; those from `since` on."""
    found = [line for line in tail(run_dir / "events.jsonl") if isinstance(line.get("event"), str)]
    return [line for line in found if since is None or _time(line) >= since]


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


def refused_nodes(run_dir: Path, since: datetime) -> tuple[str, ...]:
    """Nodes that preflight tests refused since then."""
    tested = [event.get("refused") for event in events(run_dir, since) if event["event"] == "preflight"]
    return tuple(str(node) for node in tested[-1]) if tested and isinstance(tested[-1], list) else ()


def tail(path: Path) -> list[dict[str, Any]]:
    """Objects on the last complete lines of a JSONL file; none if the file is missing."""
    return list(_objects(path))


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read()
    except OSError:
        return
    lines = text.split(b"\n")[:-1]
    for line in lines[1:] if size > _TAIL_BYTES else lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # torn by a crash
        if isinstance(found, dict):
            yield found


def _time(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["time"])
