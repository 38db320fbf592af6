"""Malformed lines, records and rows: counted, located, and skipped as long as there are few of them.

Damage after which the rest of the file can't be read (a broken compressed stream, broken XML) is always an error, and
is raised elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError

_EXAMPLES = 5


@dataclass
class MalformedRecords:
    """Numbers of lines, records and rows that were read, and of malformed ones among them, with the first few of
    those."""

    seen: int = 0
    """Lines, records and rows of the files that were read to the end."""
    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    """The first few by (file, index): the same ones however the work was shared."""

    def note(self, file: str, index: int, where: str, reason: str) -> None:
        """Counts one that is skipped; `file` is the input file's name in the dataset."""
        self.count += 1
        self._keep([{"file": file, "index": index, "place": where, "reason": reason}])  # keys of report.json

    def add(self, other: MalformedRecords) -> None:
        """Adds the counts of other files."""
        self.seen += other.seen
        self.count += other.count
        self._keep(other.examples)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"seen": self.seen, "count": self.count, "examples": list(self.examples)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> MalformedRecords:
        """The inverse of `to_dict`."""
        return cls(values["seen"], values["count"], list(values["examples"]))

    def _keep(self, examples: list[dict[str, Any]]) -> None:
        kept = [*self.examples, *examples]
        kept.sort(key=lambda example: (example["file"], example["index"]))
        self.examples = kept[:_EXAMPLES]


class RecordCounter:
    """Counts the lines, records or rows of one file while they are read."""

    def __init__(self, path: Path, name: str, max_fraction: float, bad: MalformedRecords) -> None:
        """`path` is the file's name in errors, `name` its name in the dataset."""
        self._path, self._name, self._max_fraction, self._bad = path, name, max_fraction, bad
        self.seen = 0
        """Number read so far, malformed or not; each is counted before it is checked."""
        self._count = 0
        self._first: list[str] = []

    def malformed(self, index: int, where: str, reason: str, advice: str) -> None:
        """Counts one that is malformed and skipped. Raises DataError when `max_fraction` is 0."""
        if not self._max_fraction:
            raise DataError(f"{self._path}, {where}: {reason}; {advice}.")
        self._bad.note(self._name, index, where, reason)
        self._count += 1
        if len(self._first) < _EXAMPLES:
            self._first.append(f"{where}: {reason}")

    def empty(self) -> None:
        """Counts an empty file, which is skipped whatever `max_fraction` is."""
        self._bad.seen += 1
        self._bad.note(self._name, 0, "the whole file", "it is empty")

    def end(self) -> None:
        """To be called at the end of the file. Raises DataError when more than `max_fraction` were malformed."""
        self._bad.seen += self.seen
        if self._count > self._max_fraction * self.seen:
            raise DataError(
                f"{self._path}: {self._count} of the {self.seen} lines, records or rows read are malformed, more than "
                f"max_bad_fraction={self._max_fraction:g} allows ({'; '.join(self._first)}); repair the file, leave it "
                "out, or allow more."
            )
