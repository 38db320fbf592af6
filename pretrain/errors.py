"""The two errors a user can cause. `pretrain` prints them as one sentence and exits; nothing else is caught."""

from pathlib import Path


class ConfigError(Exception):
    """Bad usage or configuration: says what is wrong and what to do. Exit status 2."""

    exit_status = 2


class RunError(Exception):
    """A run that cannot go on (corrupt checkpoint, no disk space, a loss that is not a number). Exit status 1."""

    exit_status = 1


def unwritable(path: Path, error: OSError) -> RunError:
    """What to raise for the user when a file of the run cannot be written."""
    return RunError(f"{path} cannot be written ({error.strerror}): free the disk or choose another run.dir")
