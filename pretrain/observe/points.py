"""Items that are delivered to a tracker: numbers, files, and the data that a run reads."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.dataset.source import DataSource
from pretrain.config.data import Source


@dataclass(frozen=True)
class Point:
    """One number at one step."""

    name: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class PointSet:
    """Many numbers of one step, which are kept or dropped together while a service is away."""

    points: tuple[Point, ...]


@dataclass(frozen=True)
class File:
    """A file to keep with the run."""

    path: Path
    folder: str


@dataclass(frozen=True)
class DataInput:
    """A dataset that the run is trained on."""

    name: str
    address: str
    fingerprint: str
    """sha256 of what it holds: equal for equal datasets, wherever they lie"""
    profile: dict[str, int | float]
    """how much it is, and its weight among the others"""


def data_inputs(sources: Sequence[Source], datasets: Sequence[DataSource]) -> list[DataInput]:
    """The data inputs of a run's sources, whose datasets are in the same order."""
    return [
        DataInput(
            source.called,
            dataset.address,
            dataset.identity,
            {
                **dataset.sizes(),
                "vocabulary": dataset.vocabulary_size,
                "weight": source.weight,
            },
        )
        for source, dataset in zip(sources, datasets, strict=True)
    ]


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
