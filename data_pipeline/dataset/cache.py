"""The cache of remote datasets: a folder of pieces, limited in bytes, shared by all processes of a machine and all
runs.

A piece is named by the sha256 of its bytes, so it is never stale, and datasets that share members share their pieces.
It appears complete, by a rename. A piece that is removed while it is mapped stays readable, as POSIX guarantees.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.locks import lock
from data_pipeline.errors import DataError

DEFAULT_BYTES = 64 * 2**30
_KEPT_FRACTION = 0.9  # of the limit, after an eviction, so that not every new piece causes another
_TOTAL, _INCOMING = "total", "incoming"


class Cache:
    """Pieces by digest. Safe to share between threads, and the folder between processes."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = DEFAULT_BYTES) -> None:
        """`folder` is created when first needed; the default is in the user's cache directory.

        `limit_bytes` limits the pieces; the small files of `folder_of` are not counted.
        """
        self.folder = (folder or default_folder()).absolute()
        self.limit_bytes = limit_bytes
        self._checked: set[str] = set()
        self._warned = False

    def expect(self, needed_bytes: int) -> None:
        """Warns, once, that a batch needs more bytes than the cache holds."""
        if needed_bytes > self.limit_bytes and not self._warned:
            self._warned = True
            if os.environ.get("LOCAL_RANK", "0") == "0":  # one warning per machine
                print(
                    f"warning: one batch needs {needed_bytes:,} bytes of the dataset, and data.cache_bytes keeps "
                    f"{self.limit_bytes:,}: most will be fetched again and again.",
                    file=sys.stderr,
                )

    def find(self, sha256: str, size_bytes: int) -> mmap.mmap | None:
        """The piece, mapped; None when it is missing or incomplete. Its bytes are checked once per process, since a
        crash of the machine may leave a file whose bytes never reached the disk. Raises DataError as `get` does."""
        path = self._path(sha256)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != size_bytes:
                    return None
                piece = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
            if sha256 not in self._checked:
                if hashlib.sha256(piece).hexdigest() != sha256:
                    return None
                self._checked.add(sha256)
            _use(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        return piece

    def get(self, sha256: str, size_bytes: int, fetch: Callable[[], bytes]) -> mmap.mmap | bytes:
        """The piece of that digest, from the folder or from `fetch`, which is called by one process at a time.

        `fetch` checks what it returns. Raises what it raises, and DataError when the folder can't be used.
        """
        try:
            if (piece := self.find(sha256, size_bytes)) is not None:
                return piece
            # A process that has waited here for another to fetch the piece finds it now.
            with lock(self._made(self.folder / "fetching") / sha256[:2]):
                if (piece := self.find(sha256, size_bytes)) is not None:
                    return piece
                data = fetch()
                assert len(data) == size_bytes
                self._store(sha256, data)
                self._checked.add(sha256)
                return data
        except OSError as error:
            raise self._unusable(error) from error

    def folder_of(self, sha256: str, files: dict[str, Callable[[], bytes]]) -> Path:
        """A permanent folder of small files; `files` maps names to functions that fetch missing ones."""
        folder = self.folder / "datasets" / sha256
        try:
            with lock(self._made(self.folder / "fetching") / sha256[:2]):
                self._made(folder)
                for name, fetch in files.items():
                    if not (folder / name).exists():
                        with atomic_path(folder / name) as path:
                            path.write_bytes(fetch())
        except OSError as error:
            raise self._unusable(error) from error
        return folder

    def _store(self, sha256: str, data: bytes) -> None:
        if len(data) > self.limit_bytes:
            return
        with lock(self._made(self.folder) / _TOTAL) as held:
            try:
                total = int(os.pread(held.descriptor, 32, 0))
            except ValueError:  # the first piece
                total = self._make_room(self.limit_bytes)
            if total + len(data) > self.limit_bytes:
                total = self._make_room(min(int(self.limit_bytes * _KEPT_FRACTION), self.limit_bytes - len(data)))
            # Counted before it is written: a crash in between leaves too large a total, which is harmless.
            os.ftruncate(held.descriptor, 0)
            os.pwrite(held.descriptor, str(total + len(data)).encode(), 0)
            # Whoever holds the lock is the only writer, and `find` checks the bytes.
            with atomic_path(self._path(sha256), self.folder / _INCOMING, durable=False) as incoming:
                incoming.write_bytes(data)
                _use(incoming)

    def _make_room(self, kept_bytes: int) -> int:
        """Removes the least recently used pieces until the rest have at most `kept_bytes`; returns their bytes."""
        pieces = []
        for path in self.folder.glob("pieces/*/*"):
            status = path.stat()
            pieces.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in pieces)
        for _, size, path in sorted(pieces):
            if total <= kept_bytes:
                break
            path.unlink()
            self._checked.discard(path.name)
            total -= size
        return total

    def _path(self, sha256: str) -> Path:
        return self.folder / "pieces" / sha256[:2] / sha256

    def _made(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _unusable(self, error: OSError) -> DataError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DataError(
                f"The disk of the cache {self.folder} is full; make room there, or set data.cache_bytes below "
                f"{self.limit_bytes:,} or data.cache_dir to another disk."
            )
        return DataError(
            f"The cache {self.folder} can't be used ({error.strerror or error}); set data.cache_dir to a directory "
            "that can be written."
        )


def default_folder() -> Path:
    """The default cache folder, according to the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "pretrain"


def _use(path: Path) -> None:
    """Records a use of the file in its modification time, since access times are often disabled."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))
