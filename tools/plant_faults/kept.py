"""Findings of earlier calls, kept in a folder so that a call continues the one before it: how tests went without a
fault, and what became of faults."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tools.plant_faults.faults import Fault
from tools.plant_faults.trial import TestRun


class Kept:
    """Two files of JSON lines in `directory`; None: nothing is kept. `root` is the project's. What was found of texts
    that have changed since counts for nothing: of a file of tests, of a file that it ran lines of, of a faulty line."""

    def __init__(self, root: Path, directory: Path | None) -> None:
        self._root, self._directory = root, directory
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self._studies = {record["file"]: record for record in self._read("tests.jsonl")}
        self._noticed_by = {tuple(record["fault"]): record["by"] for record in self._read("faults.jsonl")}

    def studied(self, file: str, targets: Iterable[str]) -> list[TestRun] | None:
        """Runs of the tests of a file, with the lines that they ran of `targets`; None: it is to be studied."""
        record = self._studies.get(file)
        if record is None or record["text"] != self._digest(file):
            return None
        if any(record["targets"].get(target) != self._digest(target) for target in targets):
            return None
        return [TestRun(**run) for run in record["runs"]]

    def add_study(self, file: str, targets: Sequence[str], runs: Iterable[TestRun]) -> None:
        """Keeps how they went, with their lines of `targets`."""
        known = {target: self._digest(target) for target in targets}
        self._add(
            "tests.jsonl",
            {"file": file, "text": self._digest(file), "targets": known, "runs": [asdict(run) for run in runs]},
        )

    def tried(self, path: str, fault: Fault, source: str) -> bool:
        """Whether a fault was tried in an earlier call."""
        return _key(path, fault, source) in self._noticed_by

    def noticed_by(self, path: str, fault: Fault, source: str) -> str | None:
        """The test that noticed a fault in an earlier call; None: none did, or it was not tried."""
        return self._noticed_by.get(_key(path, fault, source))

    def add_tried(self, path: str, fault: Fault, source: str, by: str | None) -> None:
        """Keeps that a test noticed a fault, or with None that none did."""
        self._add("faults.jsonl", {"fault": _key(path, fault, source), "by": by})

    def _digest(self, name: str) -> str:
        return blake2b((self._root / name).read_bytes(), digest_size=8).hexdigest()

    def _read(self, name: str) -> Iterator[Any]:
        if self._directory is not None and (self._directory / name).is_file():
            for line in (self._directory / name).read_text(encoding="utf-8").splitlines():
                yield json.loads(line)

    def _add(self, name: str, record: object) -> None:
        if self._directory is not None:
            with (self._directory / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _key(path: str, fault: Fault, source: str) -> tuple[str, ...]:
    """The fault, wherever in its file the line now is."""
    raw = source.encode()
    first = raw.rfind(b"\n", 0, fault.start) + 1
    line = raw[first : raw.find(b"\n", fault.start)].decode(errors="replace")
    return path, fault.kind, line, str(fault.start - first), str(fault.end - first), fault.text
