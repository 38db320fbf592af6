"""Files that a crash leaves whole or untouched: written beside their name, had on the disk, and then renamed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path, scratch: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """A name to write to, that becomes `path` at the end, whole and on the disk, or vanishes on an error. Makes the
    folder.

    Without `scratch` the name is one that no other writer has, so several may write the same file. With it, on the same
    file system, whoever is killed leaves no more than that one name, which the next writer takes over: for files of one
    writer at a time. `durable=False` leaves out the disk: a power cut may then leave a file of that name without its
    bytes, which is for readers who check them.
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
    """Replaces `path` by `content`, all or nothing; for a file of one writer. Raises OSError."""
    with atomic_path(path, path.with_name(f"{path.name}.tmp")) as scratch:
        scratch.write_bytes(content)


def fsync(path: Path) -> None:
    """Has the disk hold what was written to a file, or to a directory's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
