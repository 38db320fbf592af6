"""Malformed lines, records and rows: counted, located, and left out as long as they are few enough.

What can't be told apart from the rest of its file (a damaged compressed stream, broken XML) is no business of this
file: there the rest is lost, which is always an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError

_EXAMPLES = 5


@dataclass
class MalformedRecords:
    """How many lines, records and rows were read, how many of them were malformed, and the first few of those."""

    seen: int = 0
    """Of files that were read to their end."""
    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Of smallest (file, index): the same ones however the work was shared."""

    def note(self, file: str, index: int, where: str, reason: str) -> None:
        """Counts one that is left out; `file` is the input file as the dataset calls it."""
        self.count += 1
        self._keep([{"file": file, "index": index, "place": where, "reason": reason}])  # keys of report.json

    def add(self, other: MalformedRecords) -> None:
        """Takes in what was counted elsewhere, in other files."""
        self.seen += other.seen
        self.count += other.count
        self._keep(other.examples)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"seen": self.seen, "count": self.count, "examples": list(self.examples)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> MalformedRecords:
        """The inverse of `to_dict`."""
        return cls(values["seen"], values["count"], list(values["examples"]))

    def _keep(self, examples: list[dict[str, Any]]) -> None:
        held = [*self.examples, *examples]
        held.sort(key=lambda example: (example["file"], example["index"]))
        self.examples = held[:_EXAMPLES]


class RecordCounter:
    """Watches over the lines, records or rows of one file while they are read."""

    def __init__(self, path: Path, name: str, max_fraction: float, bad: MalformedRecords) -> None:
        """`path` is what errors call the file, `name` what the dataset does."""
        self._path, self._name, self._max_fraction, self._bad = path, name, max_fraction, bad
        self.seen = 0
        """Those read so far, malformed or not: each is counted before it is judged."""
        self._count = 0
        self._first: list[str] = []

    def malformed(self, index: int, where: str, reason: str, advice: str) -> None:
        """Counts one that was seen and is left out.

        Raises DataError when none may be malformed, or too many are: `max_fraction` of what was seen in the file.
        """
        if not self._max_fraction:
            raise DataError(f"{self._path}, {where}: {reason}; {advice}.")
        self._bad.note(self._name, index, where, reason)
        self._count += 1
        if len(self._first) < _EXAMPLES:
            self._first.append(f"{where}: {reason}")

    def empty(self) -> None:
        """Counts a file without a byte, which is left out whatever `max_fraction` is: nothing is lost with it."""
        self._bad.seen += 1
        self._bad.note(self._name, 0, "the whole file", "it is empty")

    def end(self) -> None:
        """To be called once all are read. Raises DataError when too many of them were malformed."""
        self._bad.seen += self.seen
        self._judge()

    def _judge(self) -> None:
        if self._count > self._max_fraction * self.seen:
            raise DataError(
                f"{self._path}: {self._count} of the {self.seen} lines, records or rows read are malformed, more than "
                f"max_bad_fraction={self._max_fraction:g} allows ({'; '.join(self._first)}); mend the file, leave it "
                "out, or allow more."
            )
