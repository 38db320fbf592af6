"""Files that a crash leaves complete or untouched: written under a temporary name, synced to disk, then renamed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path, scratch: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """A temporary name to write to, which is renamed to `path` at the end, or removed on an error. Makes the folder.

    Without `scratch` the temporary name is unique, so several writers may write the same file. With `scratch`, which
    must be on the same file system, a killed writer leaves only that name behind, and the next writer reuses it: for
    files of one writer at a time. `durable=False` skips the fsync: a power cut may then leave a file without its
    contents, so readers must check them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = scratch or path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield scratch
        if durable:
            fsync(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def atomic_write(path: Path, content: bytes) -> None:
    """Replaces the contents of `path`, all or nothing; for a file of one writer. Raises OSError."""
    with atomic_path(path, path.with_name(f"{path.name}.tmp")) as scratch:
        scratch.write_bytes(content)


def fsync(path: Path) -> None:
    """Syncs a file, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
