"""The folder that a relative path is read from, for errors of paths that a config of another folder may hold."""

from __future__ import annotations

import os
from pathlib import Path


def relative_note(path: Path) -> str:
    """` (relative to FOLDER)` of a relative path, FOLDER being the current one; empty for an absolute path."""
    if path.is_absolute():
        return ""
    try:
        return f" (relative to {os.getcwd()})"
    except OSError:  # the folder was removed
        return " (relative to a folder that was removed)"
