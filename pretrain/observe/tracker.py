"""The interface of experiment trackers. A package adds one under the entry point group `pretrain.trackers`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pretrain.config.run_config import RunConfig
from pretrain.observe.points import DataInput, File, Point

RunStatus = Literal["finished", "stopped", "failed"]


class Tracker(ABC):
    """One run in a tracking service. A background thread calls the methods, in order, and retries those that raise:
    they may block and raise anything."""

    package: ClassVar[str | None] = None
    """Distribution that it needs and that pretrain does not require; None: there is none."""
    extra: ClassVar[str] = ""
    """Extra of pretrain that installs `package`; empty: none does."""
    close_s = 8.0
    """Longest wait in seconds, at the end of a run, for the service to take everything."""

    def __init__(self, config: RunConfig) -> None:
        """Reads settings only; `start` opens the run."""
        self.config = config

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


def public(config: RunConfig) -> RunConfig:
    """The config without what may hold a password."""
    return config.model_copy(update={"track": config.track.model_copy(update={"uri": None})})
