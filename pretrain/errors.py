"""The two errors that a user can cause. `pretrain` prints them as one sentence and exits; nothing else is caught."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.errors import ExitStatus


class ConfigError(Exception):
    """Bad usage or configuration: says what is wrong and what to do."""

    exit_status = ExitStatus.BAD_USAGE


class RunError(Exception):
    """A failure that ends a run: a corrupt checkpoint, a full disk, a loss that is not finite."""

    exit_status = ExitStatus.FAILED


class MiscomputedError(RunError):
    """A machine has computed a step wrong, or lost bits of its memory. `facts` are those of a line of events.jsonl."""

    def __init__(self, sentence: str, facts: Mapping[str, Any]) -> None:
        super().__init__(sentence)
        self.facts = facts


def unwritable(path: Path, error: OSError) -> RunError:
    """Error to raise for the user when a file of the run cannot be written."""
    return RunError(f"{path} cannot be written ({error.strerror}): free the disk or choose another run.dir")
