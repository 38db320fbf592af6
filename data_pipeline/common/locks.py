"""Locks on files (flock), exclusive or shared, released when the process that holds them ends, however it ends.

`filelock` does not suffice: its shared locks live in a SQLite database, can't be upgraded to exclusive ones, and
waiting polls; on a file system without flock it falls back to files that outlive a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""errors of file systems without flock, such as some of NFS and Weka"""


class FileLock:
    """A lock that is held until `release`, the end of a `with` block, or the end of the process."""

    def __init__(self, path: Path, operation: int) -> None:
        """Creates the file if it does not exist. `operation` is flock's; raises OSError as flock and open do."""
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            fcntl.flock(self._file, operation)
        except OSError as error:
            self._file.close()
            if error.errno not in NO_LOCKS:
                raise
            raise OSError(error.errno, f"its file system has no locks: {error.strerror}") from None
        except BaseException:
            self._file.close()
            raise

    @property
    def descriptor(self) -> int:
        """File descriptor of the lock file, which may hold a value that the lock guards."""
        return self._file.fileno()

    def is_current(self) -> bool:
        """Whether the path still leads to the locked file, which may have been removed before it was locked."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def try_exclusive(self) -> bool:
        """Upgrades a shared lock to an exclusive one. False when others hold it too; the shared lock may then be
        lost."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def make_shared(self) -> None:
        """Downgrades an exclusive lock to a shared one."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Releases the lock. May be called more than once."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def lock(path: Path) -> FileLock:
    """Waits for an exclusive lock. Raises OSError when the file can't be opened or locked."""
    return FileLock(path, fcntl.LOCK_EX)


def try_lock(path: Path, shared: bool = False) -> FileLock | None:
    """The lock, or None when another process holds it. Raises OSError when the file can't be opened or locked."""
    try:
        return FileLock(path, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
