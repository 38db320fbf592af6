"""Files that a crash leaves whole or untouched."""

import os
from pathlib import Path

from pretrain.errors import RunError


def write_whole(path: Path, content: bytes) -> None:
    """Replaces `path` by `content`, all or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.tmp")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def unwritable(path: Path, error: OSError) -> RunError:
    """What to raise for the user when a file of the run cannot be written."""
    return RunError(f"{path} cannot be written ({error.strerror}): free the disk or choose another run.dir")
