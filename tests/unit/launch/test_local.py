"""What becomes of local ranks when one of them ends."""

import subprocess
import sys

import pytest

from pretrain.process import local


def _process(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_that_fails_ends_the_others_whichever_it_is(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_GRACE_S", 0.1)
    codes = ["raise SystemExit(2)" if rank == failing else "import time; time.sleep(600)" for rank in range(3)]
    processes = [_process(code) for code in codes]
    assert local._wait(processes) == 2
    assert all(process.returncode is not None for process in processes)


@pytest.mark.parametrize(
    ("statuses", "expected"), [([0, 0], 0), ([75, 75], 75), ([0, 75], 75), ([0, 1], 1), ([75, 2], 2)]
)
def test_the_status_of_ranks_that_end_by_themselves(statuses: list[int], expected: int) -> None:
    assert local._wait([_process(f"raise SystemExit({status})") for status in statuses]) == expected


def test_a_rank_that_was_killed_is_named_also_where_all_end_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    processes = [_process(f"import os; os.kill(os.getpid(), {number})") for number in (15, 9)]
    for process in processes:
        process.wait()
    assert local._wait(processes) == 1
    assert capsys.readouterr().err == "pretrain: rank 0 was ended by SIGTERM\n"
