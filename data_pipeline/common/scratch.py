"""The folder that a build works in, beside its output: kept while the build is stopped, shared by equal commands.

Every command at work holds a shared lock on it; it is emptied or removed only by one that is alone.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.common.locks import FileLock, try_lock
from data_pipeline.errors import DataError

_LOCK, _IDENTITY = "lock", "identity"
_HALF_EMPTIED = "half emptied"  # no ending
_TRIES, _WAIT_S = 50, 0.1


def scratch_folder(output: Path) -> Path:
    """Where the build of `output` works."""
    return output.parent / f".{output.name}.building"


@contextmanager
def open_scratch(output: Path, identity: str, ending: str = "", of_ending: Sequence[str] = ()) -> Iterator[Path]:
    """The folder with what earlier or other commands of the same `identity` have done; what others left is removed.
    Where theirs was the same but for the `ending`, that is only what is called as `of_ending` says.

    Raises DataError when a command of another identity or ending is at work in it.
    """
    folder = scratch_folder(output)
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, shared=True) as lock:
            if lock is not None:
                found, whole = _identity(folder), f"{identity}\n{ending}"
                mine = found == whole
                if not mine and lock.try_exclusive():  # where that fails, the shared lock is lost: once more
                    same = found is not None and found.startswith(f"{identity}\n")
                    if same:
                        (folder / _IDENTITY).write_text(f"{identity}\n{_HALF_EMPTIED}")
                    _empty(folder, of_ending if same else None)
                    (folder / _IDENTITY).write_text(whole)
                    lock.make_shared()
                    mine = True
                if mine:
                    yield folder
                    return
        time.sleep(_WAIT_S)
    raise DataError(
        f"Another build is writing {output}, of other input or with other settings; wait for it, or choose another "
        "output."
    )


def remove_scratch(output: Path) -> None:
    """Removes the folder, unless a command is at work in it: then the last one does."""
    folder = scratch_folder(output)
    if folder.is_dir():
        with _locked(folder, shared=False) as lock:
            if lock is not None:
                _empty(folder)
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, shared: bool) -> Iterator[FileLock | None]:
    """The lock of a folder that still is there; None when someone else's hinders it."""
    try:
        lock = try_lock(folder / _LOCK, shared)
    except FileNotFoundError:
        lock = None
    if lock is None:
        yield None
        return
    with lock:
        yield lock if lock.is_current() else None


def _identity(folder: Path) -> str | None:
    try:
        return (folder / _IDENTITY).read_text()
    except FileNotFoundError:
        return None


def _empty(folder: Path, names: Sequence[str] | None = None) -> None:
    """Removes all but the lock, or what has one of the `names`."""
    if names is None:
        (folder / _IDENTITY).unlink(missing_ok=True)  # first: what is half emptied is nobody's
    for path in list(folder.iterdir()):
        if path.name == _LOCK or (names is not None and path.name not in names):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
