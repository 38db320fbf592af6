"""The error that data_pipeline raises at its users, and the exit statuses of every command."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses of commands."""

    DONE = 0
    FAILED = 1
    """it failed, or found a mismatch"""
    BAD_USAGE = 2
    """wrong command line or config"""
    STOPPED = 75
    """stopped by a signal after saving: run the same command again to resume"""


class DataError(Exception):
    """Error for the user: what is wrong, in which file, and what to do, in one sentence that is shown as it is, without
    a traceback."""
