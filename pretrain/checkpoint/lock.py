"""One run, one writer: a run.dir that a living run writes to is refused to a second one."""

import errno
import threading
from pathlib import Path
from types import TracebackType

from data_pipeline.common.locks import NO_LOCKS, FileLock, try_lock
from pretrain.config.run import Run
from pretrain.engine.collective import gather
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import RunDir

# Errors that may be gone when the same command is run again later.
_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN}


class Claim:
    """A run directory that only this process writes to, until `release` or the end of the process."""

    def __init__(self, run_dir: Path, path: Path, lock: FileLock) -> None:
        """`path`: of the file that is locked."""
        self._run_dir, self._path, self._lock = run_dir, path, lock
        self._renewing = threading.Lock()

    def renew(self) -> None:
        """Takes the directory again if it was deleted. For any thread. Raises RunError if another run has it
        by now, and OSError if that can't be found out."""
        with self._renewing:
            if self._lock.is_current():
                return
            self._run_dir.mkdir(parents=True, exist_ok=True)
            lock = try_lock(self._path)
            if lock is None:
                raise RunError(f"{self._run_dir} was deleted under this run, and another run writes to it by now")
            self._lock.release()
            self._lock = lock

    def release(self) -> None:
        """Lets others have it."""
        self._lock.release()

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def lock_file(run: Run) -> Path:
    """The file that whoever writes to the run directory holds locked."""
    return RunDir(Path(run.dir)).lock if run.lock is None else Path(run.lock)


def claim(run: Run, leader: bool) -> Claim | None:
    """Locks the run directory. Returns the claim on the leader, None on other ranks. Raises ConfigError on every rank
    if another run holds it or it cannot be written or locked, RunError if its disk is in trouble. Collective."""
    run_dir, path = Path(run.dir), lock_file(run)
    claimed: Claim | None = None
    problem: Exception | None = None
    if leader:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            lock = try_lock(path)
            if lock is None:
                problem = ConfigError(f"another run is writing to {run_dir}: wait for it, or use another run.dir")
            else:
                claimed = Claim(run_dir, path, lock)
        except OSError as error:
            kind = RunError if error.errno in _TRANSIENT else ConfigError
            if error.errno in NO_LOCKS:
                problem = kind(
                    f"{path}: {error.strerror}: set run.lock to a file on another, which all nodes reach; it keeps a "
                    "second run out"
                )
            elif run.lock is not None and not path.exists():
                problem = kind(f"run.lock={path} cannot be written ({error.strerror}): choose another")
            else:
                problem = kind(f"{run_dir} cannot be written ({error.strerror}): choose another run.dir")
    first_problem = next((error for error in gather(problem) if error is not None), None)
    if first_problem is not None:
        raise first_problem
    return claimed
