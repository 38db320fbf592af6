"""The process that supervises a job, for other processes on the same machine."""

import json
import os
import socket
from pathlib import Path

from data_pipeline.common.atomic import atomic_write

_FILE = "supervisor.json"


def write(directory: Path, job: str | None) -> None:
    """Records this process as the supervisor, of a Slurm job or of none. Raises OSError."""
    supervisor = {"pid": os.getpid(), "host": socket.gethostname(), "job": job}
    atomic_write(directory / _FILE, json.dumps(supervisor).encode())


def here(directory: Path) -> int | None:
    """Process id of the supervisor, if it runs on this machine and belongs to no Slurm job, which Slurm cancels."""
    try:
        found = json.loads((directory / _FILE).read_text())
        pid, host, job = int(found["pid"]), found["host"], found["job"]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if host == socket.gethostname() and job is None and b"launch" in command else None
