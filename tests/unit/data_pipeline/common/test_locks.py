"""Locks on files: who hinders whom, and what frees them."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from data_pipeline.common.locks import FileLock, lock, try_lock

HOLDER = """
import sys, time
from pathlib import Path
from data_pipeline.common.locks import try_lock
held = try_lock(Path(sys.argv[1]), shared=sys.argv[2] == "shared")
print("held", flush=True)
time.sleep(600)
"""


def other_process(path: Path, kind: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), kind],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def taken(found: FileLock | None) -> FileLock:
    assert found is not None
    return found


def test_an_exclusive_lock_is_one_process_s_until_that_ends(tmp_path: Path) -> None:
    holder = other_process(tmp_path / "lock", "exclusive")
    try:
        assert try_lock(tmp_path / "lock") is None
        assert try_lock(tmp_path / "lock", shared=True) is None
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with taken(try_lock(tmp_path / "lock")):
        pass


def test_shared_locks_hinder_exclusive_ones_alone(tmp_path: Path) -> None:
    holder = other_process(tmp_path / "lock", "shared")
    try:
        assert try_lock(tmp_path / "lock") is None
        with taken(try_lock(tmp_path / "lock", shared=True)) as mine:
            assert not mine.try_exclusive()
    finally:
        holder.kill()
        holder.wait()


def test_who_is_alone_may_make_a_shared_lock_exclusive_and_back(tmp_path: Path) -> None:
    with taken(try_lock(tmp_path / "lock", shared=True)) as mine:
        assert mine.try_exclusive()
        assert try_lock(tmp_path / "lock", shared=True) is None
        mine.make_shared()
        taken(try_lock(tmp_path / "lock", shared=True)).release()


def test_waiting_ends_with_the_release(tmp_path: Path) -> None:
    order: list[str] = []

    def waits() -> None:
        with lock(tmp_path / "lock"):
            order.append("second")

    with lock(tmp_path / "lock"):
        thread = threading.Thread(target=waits)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_lock_file_that_was_removed_or_replaced_is_not_current(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with taken(try_lock(path)) as mine:
        assert mine.is_current()
        path.unlink()
        assert not mine.is_current()
        path.touch()
        assert not mine.is_current()


def test_a_missing_folder_is_no_one_s_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        try_lock(tmp_path / "none" / "lock")


def test_the_lock_file_keeps_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"17")
    with lock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_bytes() == b"17"
