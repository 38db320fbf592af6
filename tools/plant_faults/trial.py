"""Runs tests in a copy of the project, in processes forked from one that has the slow libraries imported already.

A fork costs a second where starting Python with torch, megatron-core and DeepSpeed costs ten. It forgets the modules of
the project, so that it imports those of its copy.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import Popen
from typing import Any

_OWN = ("pretrain", "data_pipeline", "launch", "examples", "tests", "tools")
_IMPORT = "import"
NO_END = "no end in time"
"""what notices a fault with which tests don't end"""
_RAN = (0, 1)
"""statuses of pytest when tests ran, and when some of them failed"""
_fork = multiprocessing.get_context("fork")
alone = threading.Lock()
"""held while a process is forked, and while another thread prints: a fork finds a lock as it is at that moment"""


@dataclass(frozen=True)
class TestRun:
    """A test as it went without a fault: seconds with its fixtures, whether it starts processes, and the lines of each
    file under study that it ran in its own process."""

    name: str
    seconds: float
    starts_processes: bool
    lines: dict[str, list[int]]

    def reaches(self, path: str, first: int, last: int) -> bool:
        """Whether it ran one of the lines in its own process."""
        return any(first <= line <= last for line in self.lines.get(path, ()))


def prepare() -> None:
    """Imports the slow libraries, which forks from now on have."""
    import tests.helpers.preload  # noqa: F401


def study(copy: Path, files: Sequence[str], targets: Sequence[str], out: Path, timeout_s: float) -> list[TestRun]:
    """Runs files of tests without a fault. Returns the tests that pass. Raises RuntimeError with what was printed
    where they did not run to their end."""
    if not files:
        return []  # pytest would run all that there are
    record = out.with_suffix(".json")
    _in_fork(copy, out, timeout_s, _study, list(files), [str(copy / target) for target in targets], record)
    if not record.is_file():
        raise RuntimeError(
            f"the tests without a fault did not end:\n{out.read_text(encoding='utf-8', errors='replace')}"
        )
    return [TestRun(**values) for values in json.loads(record.read_text(encoding="utf-8"))]


def notices(copy: Path, tests: Sequence[TestRun], out: Path, timeout_s: float) -> str | None:
    """The first of `tests` that fails in the copy as it is, in the order given; None: none does. Tests that don't end
    in time notice, too."""
    record = out.with_suffix(".failed")
    record.unlink(missing_ok=True)
    status = _in_fork(copy, out, timeout_s, _until_one_fails, [test.name for test in tests], record)
    if record.is_file():
        return record.read_text(encoding="utf-8")
    return None if status == 0 else NO_END if status is None else f"pytest ends with {status}"


def _in_fork(copy: Path, out: Path, timeout_s: float, function: Any, *arguments: Any) -> int | None:
    """Status of a fork that calls `function` in the copy, and of all that it started nothing is left; None: no end."""
    process = _fork.Process(target=_call, args=(copy, out, function, arguments))
    with alone:
        process.start()
    process.join(timeout_s)
    ended = process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return ended


def _call(copy: Path, out: Path, function: Any, arguments: tuple[Any, ...]) -> None:
    os.setsid()
    with out.open("wb") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    root = os.getcwd()
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", root))]
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]
    os._exit(function(*arguments))


def _pytest(arguments: Sequence[str], plugin: object) -> int:
    import pytest

    base = ["-n0", "-m", "not slow and not gpu and not cluster", "--basetemp", f"{os.getcwd()}.tests"]
    return int(pytest.main([*base, *arguments], plugins=[plugin]))


def _study(files: list[str], targets: list[str], record: Path) -> int:
    import coverage

    measured = coverage.Coverage(data_file=None, include=targets, context=_IMPORT)
    plugin = _Studies(measured, targets)
    measured.start()
    status = _pytest(files, plugin)
    measured.stop()
    if status in _RAN:
        record.write_text(json.dumps([asdict(run) for run in plugin.runs()]), encoding="utf-8")
    return status


class _Studies:
    """A plugin of pytest that notes what `TestRun` holds."""

    def __init__(self, measured: Any, targets: list[str]) -> None:
        self._measured, self._targets = measured, targets
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._starters: set[str] = set()
        self._now = ""
        for owner, method in ((Popen, "__init__"), (BaseProcess, "start")):
            setattr(owner, method, self._noting(getattr(owner, method)))

    def _noting(self, start: Any) -> Any:
        def noting(*arguments: Any, **named: Any) -> Any:
            self._starters.add(self._now.partition("::")[0])  # the file: its fixtures are those of all its tests
            return start(*arguments, **named)

        return noting

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._now = nodeid
        self._measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def runs(self) -> Iterator[TestRun]:
        """Notes on each test that passed. What ran while modules were imported, every test has run."""
        data, root = self._measured.get_data(), os.getcwd()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in self._seconds}
        for target in self._targets:
            for line, contexts in data.contexts_by_lineno(target).items():
                names = {context.removeprefix(f"{_IMPORT}|") for context in contexts}
                for name in lines if _IMPORT in names else names & lines.keys():
                    lines[name].setdefault(os.path.relpath(target, root), []).append(line)
        for name, seconds in self._seconds.items():
            if name not in self._failed:
                yield TestRun(name, seconds, name.partition("::")[0] in self._starters, lines[name])


def _until_one_fails(names: list[str], record: Path) -> int:
    return _pytest(["-x", *dict.fromkeys(name.partition("::")[0] for name in names)], _Chosen(names, record))


class _Chosen:
    """A plugin of pytest that runs the named tests alone, in that order, and notes the first that fails."""

    def __init__(self, names: list[str], record: Path) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._record = record

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        kept = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(kept, key=lambda item: self._places[item.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self._record.is_file():
            self._record.write_text(report.nodeid, encoding="utf-8")
