"""`make test-versions` without an environment: what it reads of pytest, and the table that it writes."""

from pathlib import Path
from typing import Any

import pytest

from tests import versions
from tests.versions import LANES, PARTS, USUAL, outcome, table, write_table

ENDS = [
    "FAILED tests/unit/models/test_a.py::test_b[c d] - assert 1 == 2\n",
    "ERROR tests/unit/models/test_e.py::test_f\n",
    "1 failed, 30 passed, 2 skipped, 3 deselected, 1 error in 2.50s\n",
]
INSTALLED = {"python": "3.13.0", "torch": "2", "megatron-core": "1", "deepspeed": "3", "transformers": "5"}
PASSED = {"status": 0, "passed": 49, "failures": [], "date": "2026-11-28"}


def test_the_outcome_is_pytest_s_last_line_and_what_failed() -> None:
    found = outcome(ENDS, 1)
    failures = ["tests/unit/models/test_a.py::test_b[c", "tests/unit/models/test_e.py::test_f"]
    assert found == {"status": 1, "failed": 1, "passed": 30, "skipped": 2, "error": 1, "failures": failures}
    assert outcome([], 2) == {"status": 2, "failures": []}


def test_every_test_of_a_part_is_there() -> None:
    assert all((versions.ROOT / name).exists() for names in PARTS.values() for name in names)


def test_the_table_has_a_row_for_each_lane_with_a_result(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{versions._BEGIN}an old table\n{versions._END}After.\n")
    write_table(page, {"3.13 pinned": {"versions": INSTALLED, "parts": {"golden curves": PASSED}}})
    lines = page.read_text().splitlines()
    assert lines[4] == "| 3.13 pinned | 3.13.0 | 2 | 1 | 3 | 5 | 49 passed | not run | not run | 2026-11-28 |"
    assert (lines[0], lines[-1], len(lines)) == ("Before.", "After.", 7)
    write_table(page, {})
    assert page.read_text().splitlines()[-1] == "After.", "written again in its place"
    assert table({}).count("\n") == 2


def test_a_second_call_runs_what_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page := tmp_path / "page.md").write_text(versions._BEGIN + versions._END)
    lane = LANES[2].name
    ran: list[list[str]] = []

    def run(python: Path, tests: list[str], workers: int) -> dict[str, Any]:
        assert python == tmp_path / "given/bin/python"
        ran.append(tests)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return {**PASSED, "status": 1} if len(ran) == 3 else PASSED

    monkeypatch.setattr(versions, "PAGE", page)
    monkeypatch.setattr(versions, "versions", lambda python: INSTALLED)
    monkeypatch.setattr(versions, "_run", run)
    call = ["versions", "--directory", str(tmp_path), "--lane", lane, "--environment", f"{lane}={tmp_path / 'given'}"]
    monkeypatch.setattr("sys.argv", call)
    with pytest.raises(KeyboardInterrupt):
        versions.main()
    with pytest.raises(SystemExit, match=f"failed: {lane}: cut"):
        versions.main()
    versions.main()
    golden, cut = (PARTS[name] for name in USUAL)
    assert ran == [golden, cut, cut, cut]
    assert "| 49 passed | 49 passed |" in page.read_text()


@pytest.mark.parametrize("found", [None, "/bin/false"])
def test_a_lane_without_an_interpreter_is_named_and_skipped(
    found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (page := tmp_path / "page.md").write_text(versions._BEGIN + versions._END)
    monkeypatch.setattr(versions, "PAGE", page)
    monkeypatch.setattr(versions.shutil, "which", lambda name: found)
    monkeypatch.setattr("sys.argv", ["versions", "--directory", str(tmp_path), "--lane", "3.12 pinned"])
    versions.main()
    assert "3.12 pinned: skipped, as there is no python3.12 on the PATH" in capsys.readouterr().out
