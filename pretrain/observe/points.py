"""What is delivered to a tracker: numbers and files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Point:
    """One number at one step."""

    name: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class File:
    """A file to keep with the run."""

    path: Path
    folder: str
