"""The interface of experiment trackers. A package adds one under the entry point group `pretrain.trackers`."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pretrain.config.run_config import RunConfig
from pretrain.observe.points import DataInput, File, Point

RunStatus = Literal["finished", "stopped", "failed"]
Item = TypeVar("Item")


class RefusedError(Exception):
    """A service's answer that it will never take what it got, so that sending it again does not help."""


class Tracker(ABC):
    """One run in a tracking service. A background thread calls the methods, in order, and retries those that raise:
    they may block and raise anything. `log_metrics` raises RefusedError where the service refuses one of the points for
    good; it then gets them in smaller batches, and that point alone is left out."""

    package: ClassVar[str | None] = None
    """Distribution that it needs and that pretrain does not require; None: there is none."""
    extra: ClassVar[str] = ""
    """Extra of pretrain that installs `package`; empty: none does."""
    close_s = 8.0
    """Longest wait in seconds, at the end of a run, for the service to take everything."""

    def __init__(self, config: RunConfig) -> None:
        """Reads settings only; `start` opens the run."""
        self.config = config
        self.warn: Callable[[str], None] = lambda sentence: None
        """Gives the user a sentence, such as that something has another name in the service."""

    def check(self) -> None:  # noqa: B027  (most services refuse nothing)
        """Raises ConfigError for settings that the service would refuse, before the run starts."""

    @property
    def link(self) -> str | None:
        """Where the service shows the run that was started: an address, or how to get there; None: not known."""
        return None

    @property
    @abstractmethod
    def service(self) -> str:
        """Name and address of the service, for messages, such as `MLflow at https://HOST`."""

    @abstractmethod
    def start(self, tags: Mapping[str, str]) -> None:
        """Starts the run, or resumes that of an earlier start, and logs the config as its parameters. `tags` are facts
        about the run that are not in the config."""

    @abstractmethod
    def log_metrics(self, points: Sequence[Point]) -> None:
        """Logs numbers, each at its step; at most 1000."""

    @abstractmethod
    def log_artifact(self, file: File) -> None:
        """Uploads a file."""

    @abstractmethod
    def log_dataset(self, data: DataInput) -> None:
        """Logs a dataset that the run trains on."""

    @abstractmethod
    def finish(self, status: RunStatus) -> None:
        """Ends the run."""

    @abstractmethod
    def add_report(self, files: Sequence[Path], folder: str, scores: Mapping[str, float], step: int) -> None:
        """Adds a report and its scores, as metrics of the weights after `step`, without changing the run's status.
        `start` was not called; does nothing if the service has no such run."""


def send_allowed(
    send: Callable[[Sequence[Item]], None], items: Sequence[Item], refused: Callable[[Item, RefusedError], None]
) -> None:
    """Calls `send` with all items, or, where it raises RefusedError, with fewer at a time, until each is sent that is
    not refused by itself; `refused` gets the others."""
    try:
        send(items)
    except RefusedError as error:
        if len(items) == 1:
            refused(items[0], error)
            return
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            send_allowed(send, half, refused)


def public(config: RunConfig) -> RunConfig:
    """The config without what may hold a password."""
    return config.model_copy(update={"track": config.track.model_copy(update={"uri": None})})


def without_password(text: str) -> str:
    """A text without the names and passwords in its addresses."""
    return re.sub(r"://[^/@\s]*@", "://", text)
