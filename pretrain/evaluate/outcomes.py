"""documents.jsonl: the result of each document, the evidence of a report, and the state from which an interrupted
evaluation resumes.

A line: `of` (a digest of all that the outcome depends on but the document: checkpoint, settings, the task's documents,
shots, draw), `task`, `shots`, `draw`, `document` (its number), `where` (file and line), `shown` (numbers of the solved
examples in its prompt), `truncated`, and the outcome under the name of each measure.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write

FILE = "documents.jsonl"


def digest(*parts: Any) -> str:
    """A digest of plain values, 16 hex digits."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class DocumentResult:
    """One line, without `of`."""

    document: int
    where: str
    shown: Sequence[int]
    truncated: bool
    outcomes: Mapping[str, Any]
    """outcome of each measure, by its name"""


@dataclass
class Outcomes:
    """The file of one report directory, which the reporting rank writes; without `path`, nothing is written."""

    path: Path | None = None
    _known: dict[str, dict[int, DocumentResult]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_bytes().split(b"\n"):
                try:
                    values = json.loads(line)
                    result = DocumentResult(
                        *(values[name] for name in ("document", "where", "shown", "truncated", "outcomes"))
                    )
                    self._known.setdefault(values["of"], {})[result.document] = result
                except (ValueError, KeyError, TypeError):  # the last line of a process that was killed
                    continue

    def known(self, of: str) -> Mapping[int, DocumentResult]:
        """Results of an earlier evaluation, by the number of the document."""
        return self._known.get(of, {})

    def add(self, of: str, about: Mapping[str, Any], results: Iterable[DocumentResult]) -> None:
        """Appends lines; `about`: task, shots and draw."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(_line(of, about, result) for result in results)

    def finish(self, sets: Iterable[tuple[str, Mapping[str, Any], Iterable[DocumentResult]]]) -> None:
        """Rewrites the file with the lines of `sets` (the arguments of `add`) in order, and drops lines of other
        evaluations, which the report does not cover."""
        if self.path is not None:
            lines = [_line(of, about, result) for of, about, results in sets for result in results]
            atomic_write(self.path, "".join(lines).encode())


def _line(of: str, about: Mapping[str, Any], result: DocumentResult) -> str:
    return json.dumps({"of": of, **about, **vars(result)}, allow_nan=False) + "\n"
