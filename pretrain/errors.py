"""The two errors that a user can cause. `pretrain` prints them as one sentence and exits; nothing else is caught."""

from pathlib import Path

from data_pipeline.errors import ExitStatus


class ConfigError(Exception):
    """Bad usage or configuration: says what is wrong and what to do."""

    exit_status = ExitStatus.BAD_USAGE


class RunError(Exception):
    """A failure that ends a run: a corrupt checkpoint, a full disk, a loss that is not finite."""

    exit_status = ExitStatus.FAILED


def unwritable(path: Path, error: OSError) -> RunError:
    """What to raise for the user when a file of the run cannot be written."""
    return RunError(f"{path} cannot be written ({error.strerror}): free the disk or choose another run.dir")
