"""Locks on files (flock), exclusive or shared: the end of the process that holds one lets go of it, however it ends.

`filelock` does not serve: its shared locks live in a SQLite database, can't become exclusive ones, and whoever waits
polls; where a file system has no flock it falls back to files that outlive a killed process.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class FileLock:
    """A lock that is held until `release`, the end of a `with`, or the end of the process."""

    def __init__(self, path: Path, operation: int) -> None:
        """Makes the file where there is none. `operation` is flock's; raises OSError as flock and open do."""
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            fcntl.flock(self._file, operation)
        except BaseException:
            self._file.close()
            raise

    @property
    def descriptor(self) -> int:
        """Of the open lock file, which may hold a value that the lock guards."""
        return self._file.fileno()

    def is_current(self) -> bool:
        """Whether the path still leads to the file that is locked: it may have been removed before it was locked."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def try_exclusive(self) -> bool:
        """Makes a shared lock an exclusive one, unless others hold it too; then it may be held no more at all."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def make_shared(self) -> None:
        """Makes an exclusive lock a shared one."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Lets go. May be called again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def lock(path: Path) -> FileLock:
    """Waits for the exclusive lock. Raises OSError when the file can't be opened or locked."""
    return FileLock(path, fcntl.LOCK_EX)


def try_lock(path: Path, shared: bool = False) -> FileLock | None:
    """The lock, or None when someone else's hinders it. Raises OSError when the file can't be opened or locked."""
    try:
        return FileLock(path, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
