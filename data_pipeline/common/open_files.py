"""The limit on open files of a process. Mapped files count, and the default is often 1,024."""

from __future__ import annotations

import resource


def raise_open_file_limit() -> None:
    """Raises the limit to the system's maximum; child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_file_limit() -> int:
    """The current limit of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
