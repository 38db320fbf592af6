"""Published data sets for fine-tuning: where their files are, under which terms, and what is written from them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

Row = dict[str, Any]
"""One line of a written file."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A package that holds files of a set."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """File name."""
        return PurePosixPath(self.url).name


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One published file, pinned by its digest."""

    path: str
    """in its repository or archive"""
    sha256: str
    url: str
    """address of the file, or of its archive"""
    archive: Archive | None = None

    @property
    def name(self) -> str:
        """File name."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True, kw_only=True)
class PublishedSplit:
    """Source files and rows that `train.jsonl`, `validation.jsonl` or `test.jsonl` is made from."""

    files: Sequence[SourceFile]
    rows: int
    """number of rows that are written"""
    keep: Callable[[int], bool] = field(default=lambda number: True)
    """whether the row with this number, from 0, over all files, is in the split"""


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """One data set, written in the fields of an objective."""

    title: str
    objective: str
    read: Callable[[bytes], Iterator[Row]]
    """rows of one file"""
    splits: Mapping[str, PublishedSplit]
    terms: str
    """licence or terms of use, as its owners state them"""
    reference: str
    """who made it"""
    labels: Sequence[str] = ()
    """class or tag names, in order of their ids; empty where the objective has none"""
    settings: Mapping[str, str] = field(default_factory=dict)
    """settings of the objective, without those that have its default"""
    note: str = ""
    """difference from the set as others know it"""

    @property
    def files(self) -> list[SourceFile]:
        """Every file that is needed, each once."""
        return list(dict.fromkeys(file for split in self.splits.values() for file in split.files))
