"""A test of this repository as a finder: it fails when the fault is planted."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.museum import planting
from tests.museum.exhibit import Fault, Finding

ROOT = Path(__file__).parents[2]
_FAILED = re.compile(r"^FAILED (\S+?)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Failing:
    """Node id of a test."""

    test: str

    @property
    def tool(self) -> str:
        return f"`{self.test}`"

    @property
    def config(self) -> str:
        return "the test's own"

    def examine(self, fault: Fault, folder: Path) -> list[Finding]:
        """What pytest says of the test that fails; nothing if it passes."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.museum.planting", "-p", "no:cacheprovider"]
        environment = {**os.environ, planting.VARIABLE: planting.name_of(fault), "COLUMNS": "200"}
        environment.pop("PYTEST_XDIST_WORKER", None)
        done = subprocess.run(
            [*command, f"--basetemp={folder / 'pytest'}", self.test],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return []
        assert done.returncode == 1, done.stdout + done.stderr
        return [
            Finding(quantity=node.split("::")[-1], report=said or "fails")
            for node, said in _FAILED.findall(done.stdout)
        ]

    def expected(self, findings: list[Finding]) -> Finding | None:
        return findings[0] if findings else None
