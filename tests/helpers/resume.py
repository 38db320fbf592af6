"""A session of tests that was cut and is called again: `--resume FILE` leaves out the tests that FILE names, one on
each line, and adds each that passes or is skipped. `make test-slow` names a file of the commit."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--resume", type=Path, metavar="FILE", help="leave out the tests that FILE names; add what passes")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--resume")
    if file is None:
        return
    of_controller: dict[str, Any] | None = getattr(config, "workerinput", None)
    passed = _passed(file) if of_controller is None else of_controller["passed"]
    config.pluginmanager.register(_Resumed(None if of_controller else file, passed))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes leave out the same tests, also one that takes the place of another later."""
    file = node.config.getoption("--resume")
    node.workerinput["passed"] = [] if file is None else sorted(_passed(file))


def _passed(file: Path) -> set[str]:
    return set(file.read_text().splitlines()) if file.exists() else set()


class _Resumed:
    """Writes to `file`, in the process that hears of all tests."""

    def __init__(self, file: Path | None, passed: Collection[str]) -> None:
        self._file, self._passed, self._failed = file, set(passed), set[str]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid in self._passed]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif self._file is not None and report.when == "teardown" and report.nodeid not in self._failed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")
