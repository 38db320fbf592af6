"""How many files a process may have open: a mapped one counts, and systems allow 1,024 unless asked."""

from __future__ import annotations

import resource


def raise_open_file_limit() -> None:
    """Asks for as many as the system lets a process have; its children have as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_file_limit() -> int:
    """How many this process may have open now."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
