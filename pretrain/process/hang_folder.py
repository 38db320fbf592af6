"""Folder of an attempt in `hangs/` of the run: files by which ranks communicate when the run may hang.

`rank-NNNNN.json` is the report of a rank whose main thread makes no progress; `busy-NNNNN.json` says that a rank makes
progress, or accesses files; `summary.txt` is the verdict. Ranks may be a step apart, so there may be two folders of an
attempt, which count as one.
"""

import json
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from data_pipeline.common.atomic import atomic_path
from pretrain.process.hang_report import Report
from pretrain.run_dir.paths import RunDir

_NAMES = re.compile(r"(rank|busy)-([0-9]+)\.json")
_SUMMARY = "summary.txt"


class HangFolder:
    """The folder of an attempt, for one of its ranks."""

    def __init__(self, run_dir: Path, attempt: str, rank: int) -> None:
        self._run_dir, self._attempt, self._rank = RunDir(run_dir), attempt, rank

    def write(self, report: Report, busy: bool) -> Path:
        """Writes this rank's report, or that it is busy. Returns the folder. Raises OSError."""
        folders = self._folders()
        folder = folders[0] if folders else self._run_dir.hang_folder(report.step, self._attempt)
        for path, is_written in ((self._name(folder, "busy"), busy), (self._name(folder, "rank"), not busy)):
            if is_written:
                with atomic_path(path, durable=False) as scratch:
                    scratch.write_text(json.dumps(asdict(report), indent=1))
            else:
                path.unlink(missing_ok=True)
        return folder

    def withdraw(self) -> None:
        """Removes both files of this rank: it made progress."""
        for folder in self._folders():
            for kind in ("rank", "busy"):
                self._name(folder, kind).unlink(missing_ok=True)
            with suppress(OSError):  # files of other ranks may remain
                folder.rmdir()

    def ranks(self, kind: str) -> list[int]:
        """Ranks with a file of `kind`, `rank` or `busy`, ascending."""
        ranks = set()
        for folder in self._folders():
            with suppress(FileNotFoundError):  # withdrawn
                names = (_NAMES.fullmatch(path.name) for path in folder.iterdir())
                ranks |= {int(name[2]) for name in names if name is not None and name[1] == kind}
        return sorted(ranks)

    def read(self, kind: str) -> dict[int, Report]:
        """Reports of `kind` by rank, without files that are withdrawn during the read."""
        reports = {}
        for rank in self.ranks(kind):
            for folder in self._folders():
                with suppress(OSError, ValueError, TypeError):
                    reports[rank] = Report(**json.loads((folder / f"{kind}-{rank:05d}.json").read_text()))
        return reports

    def conclude(self, text: str) -> None:
        """Writes the summary, which ends the attempt. Raises OSError."""
        for folder in self._folders():
            with atomic_path(folder / _SUMMARY, durable=False) as scratch:
                scratch.write_text(f"{text}\n")

    def concluded(self) -> bool:
        """Whether a rank has written the summary."""
        return any((folder / _SUMMARY).exists() for folder in self._folders())

    def _folders(self) -> list[Path]:
        return self._run_dir.hang_folders(self._attempt)

    def _name(self, folder: Path, kind: str) -> Path:
        return folder / f"{kind}-{self._rank:05d}.json"
