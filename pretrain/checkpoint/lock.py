"""One run, one writer: a run.dir that a living run writes to is refused to a second one."""

import fcntl
from pathlib import Path
from typing import IO

from pretrain.checkpoint.collective import gather
from pretrain.errors import ConfigError


def claim(run_dir: Path, leader: bool) -> IO[str] | None:
    """Takes the run directory for as long as the returned file stays open, at the latest until the process ends.
    Collective; raises ConfigError on every rank if another run holds it."""
    held: IO[str] | None = None
    problem = None
    if leader:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            held = (run_dir / "lock").open("w")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another run is writing to {run_dir}: wait for it, or use another run.dir"
        except OSError as error:
            problem = f"{run_dir} cannot be written ({error.strerror}): choose another run.dir"
    found = next((p for p in gather(problem) if p is not None), None)
    if found is not None:
        raise ConfigError(found)
    return held
