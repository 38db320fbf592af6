"""The scratch folder of a build, beside its output: kept when the build is stopped, shared by equal commands.

Every running command holds a shared lock on it; only a command that holds it alone empties or removes it.
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
_HALF_EMPTIED = "half emptied"  # not a valid ending
_TRIES, _WAIT_S = 50, 0.1


def scratch_folder(output: Path) -> Path:
    """The folder that the build of `output` works in."""
    return output.parent / f".{output.name}.building"


@contextmanager
def open_scratch(output: Path, identity: str, ending: str = "", of_ending: Sequence[str] = ()) -> Iterator[Path]:
    """The scratch folder, with the results of earlier or parallel commands of the same `identity`; results of any other
    identity are removed. If only the `ending` differs, only the entries named in `of_ending` are removed.

    Raises DataError when a command of another identity or ending is running in it.
    """
    folder = scratch_folder(output)
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, shared=True) as lock:
            if lock is not None:
                found, expected = _identity(folder), f"{identity}\n{ending}"
                mine = found == expected
                if not mine and lock.try_exclusive():  # on failure the shared lock is lost: try again
                    same = found is not None and found.startswith(f"{identity}\n")
                    if same:
                        (folder / _IDENTITY).write_text(f"{identity}\n{_HALF_EMPTIED}")
                    _empty(folder, of_ending if same else None)
                    (folder / _IDENTITY).write_text(expected)
                    lock.make_shared()
                    mine = True
                if mine:
                    yield folder
                    return
        time.sleep(_WAIT_S)
    raise DataError(
        f"Another build is writing {output}, from other input or with other settings; wait for it, or choose another "
        "output."
    )


def remove_scratch(output: Path) -> None:
    """Removes the folder, unless another command is running in it: then the last one removes it."""
    folder = scratch_folder(output)
    if folder.is_dir():
        with _locked(folder, shared=False) as lock:
            if lock is not None:
                _empty(folder)
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, shared: bool) -> Iterator[FileLock | None]:
    """The lock of a folder that still exists; None when another process holds it."""
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
    """Removes everything but the lock, or only the entries called `names`."""
    if names is None:
        (folder / _IDENTITY).unlink(missing_ok=True)  # first: a half-emptied folder belongs to no build
    for path in list(folder.iterdir()):
        if path.name == _LOCK or (names is not None and path.name not in names):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
