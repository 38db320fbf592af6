"""A session of tests that was cut continues with what has not passed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.breadth import slow

ROOT = Path(__file__).parents[2]
TESTS = """
    import os, pytest

    def test_passes(): pass

    def test_is_skipped(): pytest.skip("there is nothing to try")

    def test_fails_at_first(): assert "MENDED" in os.environ

    @pytest.fixture
    def left_behind():
        yield
        assert "MENDED" in os.environ

    def test_cleans_up(left_behind): pass
"""


@pytest.mark.parametrize("workers", [slow(0), 2])
def test_it_continues_with_what_has_not_passed(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_few.py").write_text("\n".join(line.removeprefix("    ") for line in TESTS.splitlines()))
    (tmp_path / "pytest.ini").write_text("[pytest]")
    plugins = ["-p", "tests.helpers.resume", "-p", "no:cacheprovider", "-n", str(workers)]
    command = [sys.executable, "-m", "pytest", *plugins, "--resume", "runs/passed"]
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def said() -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.splitlines()[-1]

    assert "1 failed, 2 passed, 1 skipped, 1 error" in said()
    monkeypatch.setenv("MENDED", "1")
    assert "2 passed" in said()
    assert "2 passed" not in said()
    assert len((tmp_path / "runs" / "passed").read_text().splitlines()) == 4
