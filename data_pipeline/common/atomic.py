"""Making files outlive a power cut."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Has the disk hold what was written to a file, or to a directory's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
