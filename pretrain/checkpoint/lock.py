"""One run, one writer: a run.dir that a living run writes to is refused to a second one."""

from pathlib import Path

from data_pipeline.common.locks import FileLock, try_lock
from pretrain.checkpoint.collective import gather
from pretrain.errors import ConfigError


def claim(run_dir: Path, leader: bool) -> FileLock | None:
    """Takes the run directory until the returned lock is released, at the latest until the process ends.
    Collective; raises ConfigError on every rank if another run holds it."""
    held: FileLock | None = None
    problem = None
    if leader:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            held = try_lock(run_dir / "lock")
            if held is None:
                problem = f"another run is writing to {run_dir}: wait for it, or use another run.dir"
        except OSError as error:
            problem = f"{run_dir} cannot be written ({error.strerror}): choose another run.dir"
    found = next((p for p in gather(problem) if p is not None), None)
    if found is not None:
        raise ConfigError(found)
    return held
