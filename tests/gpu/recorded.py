"""A plugin of pytest that writes the outcome of each test to the file `--outcomes`, one JSON object a line, and leaves
out those that are in it already."""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    shares = hasattr(config, "workerinput")  # another process of pytest-xdist is told of each outcome too
    config.pluginmanager.register(_Recorder(config.getoption("outcomes"), writes=not shares))


def outcomes(path: Path) -> dict[str, str]:
    """passed, failed or skipped, by test, of what was written to `path`."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["test"]: entry["outcome"] for entry in map(json.loads, lines)}


class _Recorder:
    def __init__(self, path: Path, writes: bool) -> None:
        self._path, self._done, self._writes = path, outcomes(path), writes

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._writes and (report.when == "call" or report.outcome != "passed"):
            line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
            with self._path.open("a") as file:
                file.write(json.dumps(line | ({"error": report.longreprtext} if report.failed else {})) + "\n")
