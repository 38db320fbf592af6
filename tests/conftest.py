"""How the processes of `make test` share the tests, where the time went, and what the tests draw: each test and each
fixture finds the global random generators seeded, whatever ran before it.

A file goes to one process, so that what its tests have in common is made once. The quick end-to-end tests go to one
together, as they have a dataset and a run in common, and so do the files whose tests look at every source of the
product. Slow end-to-end tests would keep one process busy for hours: there, each file is by itself.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

from pretrain.commands.lean_imports import install
from tests.helpers.machine import processor
from tests.helpers.seeds import seed_global_generators

install()  # tests import megatron-core and DeepSpeed as the command does
if not Path("/dev/nvidiactl").exists():  # without a GPU kernels are interpreted, as triton decides when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

_OF_SOURCES = {
    f"tests/unit/{name}.py"
    for name in ("test_architecture", "test_docs", "test_language", "test_library_names", "test_signatures")
} | {"tests/unit/run_dir/test_paths.py"}

_LONG_S = 60.0  # of tests in all: what took less is not worth a table


class _ByFile(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        if "/gpu/" in file:
            return nodeid  # they have nothing in common
        if file in _OF_SOURCES:
            return "sources"
        together = "/end_to_end/" in file and "not slow" in self.config.option.markexpr
        return "end_to_end" if together else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    config.option.loadscopereorder = False  # as collected: the longest come first
    return _ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    seed_global_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    seed_global_generators()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test that leaves the working directory elsewhere would break others that run after it in the same process."""
    yield
    directory, expected = Path.cwd(), item.config.invocation_params.dir
    if directory != expected:
        os.chdir(expected)
        pytest.fail(f"the test left the working directory at {directory}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The processor and how golden curves were compared on it; then seconds by part: each file of several ranks or
    commands, and each package of the unit tests."""
    seconds: Counter[str] = Counter()
    properties: dict[str, None] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folders = report.nodeid.split("::")[0].split("/")
                seconds["/".join(folders[:3])] += report.duration
                properties |= {f"{name}: {value}": None for name, value in report.user_properties}
    terminalreporter.write_line(f"processor: {processor()}")
    for line in properties:
        terminalreporter.write_line(line)
    if seconds.total() > _LONG_S:
        terminalreporter.section("seconds by part")
        for part, part_s in seconds.most_common():
            terminalreporter.write_line(f"{part_s:7.1f}  {part}")
        terminalreporter.write_line(f"{seconds.total():7.1f}  in all, by processes that worked side by side")
