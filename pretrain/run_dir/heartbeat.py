"""`heartbeat.json` of a run: its sign of life, for other processes.

    beat = heartbeat.read(run_dir)     # None: not written yet
    beat.time, beat.step, beat.activity   # last progress of the main thread

Rank 0 replaces it every `EVERY_S` at most, and only if its main thread made progress since: an old heartbeat means that
the run has ended or makes no progress.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pretrain.run_dir.paths import RunDir

EVERY_S = 10.0


@dataclass(frozen=True)
class Heartbeat:
    """The content of the file."""

    time: float
    """Unix seconds, by the clock of rank 0's node"""
    step: int
    """current step; 0 before the first"""
    activity: str
    host: str
    pid: int


def write(run_dir: Path, beat: Heartbeat) -> None:
    """Replaces the file atomically; after a power failure it may be missing. Raises OSError, also if the directory does
    not exist: it is not created, as somebody has removed it."""
    path = RunDir(run_dir).heartbeat
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(json.dumps(asdict(beat)))
    scratch.replace(path)


def read(run_dir: Path) -> Heartbeat | None:
    """The newest heartbeat; None if there is none, or it cannot be read."""
    try:
        return Heartbeat(**json.loads(RunDir(run_dir).heartbeat.read_text()))
    except (OSError, ValueError, TypeError):
        return None
