"""Which process looks after a job, for others on the same machine."""

import json
import os
import socket
from pathlib import Path

from data_pipeline.common.atomic import atomic_write

_FILE = "supervisor.json"


def write(directory: Path, job: str | None) -> None:
    """This process does, for a job of Slurm's or none. Raises OSError."""
    whom = {"pid": os.getpid(), "host": socket.gethostname(), "job": job}
    atomic_write(directory / _FILE, json.dumps(whom).encode())


def here(directory: Path) -> int | None:
    """The number of the process, if it lives on this machine and belongs to no job of Slurm's, which ends those."""
    try:
        found = json.loads((directory / _FILE).read_text())
        pid, host, job = int(found["pid"]), found["host"], found["job"]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if host == socket.gethostname() and job is None and b"launch" in command else None
