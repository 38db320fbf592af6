"""The folder that a build works in, beside its output: kept while the build is stopped, shared by equal commands.

Every command at work holds a shared lock on it; it is emptied or removed only by one that is alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from data_pipeline.errors import DataError

_LOCK, _IDENTITY = "lock", "identity"
_TRIES, _WAIT_S = 50, 0.1


def scratch_of(output: Path) -> Path:
    """Where the build of `output` works."""
    return output.parent / f".{output.name}.building"


@contextmanager
def at_work(output: Path, identity: str) -> Iterator[Path]:
    """The folder with what earlier or other commands of the same `identity` have done; what others left is removed.

    Raises DataError when a command of another identity is at work in it.
    """
    folder = scratch_of(output)
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, fcntl.LOCK_SH) as lock:
            if lock is not None:
                mine = _identity(folder) == identity
                if not mine and _alone(lock):  # where that fails, the shared lock is lost: once more
                    _empty(folder)
                    (folder / _IDENTITY).write_text(identity)
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    mine = True
                if mine:
                    yield folder
                    return
        time.sleep(_WAIT_S)
    raise DataError(
        f"Another build is writing {output}, of other input or with other settings; wait for it, or choose another "
        "output."
    )


def remove(output: Path) -> None:
    """Removes the folder, unless a command is at work in it: then the last one does."""
    folder = scratch_of(output)
    if folder.is_dir():
        with _locked(folder, fcntl.LOCK_EX) as lock:
            if lock is not None:
                _empty(folder)
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[IO[str] | None]:
    """The lock of a folder that still is there; None when someone else's hinders it."""
    try:
        file = (folder / _LOCK).open("a")
    except FileNotFoundError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            same = os.fstat(file.fileno()).st_ino == (folder / _LOCK).stat().st_ino
        except (BlockingIOError, FileNotFoundError):
            same = False
        yield file if same else None


def _alone(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(folder: Path) -> str | None:
    try:
        return (folder / _IDENTITY).read_text()
    except FileNotFoundError:
        return None


def _empty(folder: Path) -> None:
    (folder / _IDENTITY).unlink(missing_ok=True)  # first: what is half emptied is nobody's
    for path in folder.iterdir():
        if path.name == _LOCK:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
