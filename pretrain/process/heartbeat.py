"""`run.dir/heartbeat.json`: that a run goes on, for those who look at it from outside.

    beat = heartbeat.read(run_dir)     # None: there is none yet
    beat.time, beat.step, beat.doing   # when it was last seen going on, and with what

The reporting rank replaces it every `EVERY_S` at most, and only where its main thread has gone on since: an old one
means that the run is over, or that nothing moves.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

EVERY_S = 10.0
_NAME = "heartbeat.json"


@dataclass(frozen=True)
class Heartbeat:
    """What the file says."""

    time: float
    """unix seconds, by the reporting rank's clock"""
    step: int
    """that is being made; 0 before the first"""
    doing: str
    host: str
    pid: int


def write(run_dir: Path, beat: Heartbeat) -> None:
    """Replaces the file, whole; after a power cut there may be none. Raises OSError, also where there is no such
    directory: whoever took it away would not know of a new one."""
    scratch = run_dir / f"{_NAME}.tmp"
    scratch.write_text(json.dumps(asdict(beat)))
    scratch.replace(run_dir / _NAME)


def read(run_dir: Path) -> Heartbeat | None:
    """The last one; None where there is none, or none that can be read."""
    try:
        return Heartbeat(**json.loads((run_dir / _NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None
