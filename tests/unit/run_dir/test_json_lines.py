"""A run's files of lines on disks that fill up, fail, block and forget: every line once, and nobody waits."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pretrain.errors import RunError
from pretrain.run_dir.json_lines import JsonLinesWriter, read_json_lines
from tests.helpers.disks import fill, small_disk

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.run_dir.json_lines._AGAIN_S", 0.02)


class Log:
    """JsonLinesWriter of numbers, and what was said about them."""

    def __init__(self, path: Path) -> None:
        self.path, self.said, self.count = path, list[str](), 0
        self.lines = JsonLinesWriter(path, lambda line: True, self.said.append)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.lines.append({"number": self.count, "text": "x" * 100})
            self.count += 1

    def numbers(self) -> list[int]:
        return [line["number"] for line in read_json_lines(self.path)]

    def whole(self) -> bool:
        """Whether the file gets every line, each once and in order."""
        self.lines.settle(PATIENCE_S)
        return self.numbers() == list(range(self.count))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "run" / "metrics.jsonl")
    yield made
    made.lines.close()


def in_writer(path: Path) -> bool:
    return threading.current_thread().name == path.name


def test_a_full_disk_delays_lines_and_loses_none(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 18) as disk:
        log = Log(disk / "metrics.jsonl")
        log.add(100)
        assert log.whole()
        ballast = fill(disk)
        log.add(500)
        assert not log.lines.flush(0.5)
        assert log.lines.in_trouble
        assert log.numbers() == list(range(len(log.numbers()))), "a torn line is none"
        ballast.unlink()
        assert log.whole()
        assert log.lines.close() == 0
    assert len(log.said) == 2
    assert "metrics.jsonl cannot be written (No space left on device): its lines are kept in memory" in log.said[0]
    assert log.said[1].endswith("is written again, with all lines since then")


def test_a_file_that_is_deleted_after_its_last_line_is_missed_at_the_end(log: Log) -> None:
    log.add(5)
    assert log.whole()
    log.path.unlink()
    assert log.whole()


@pytest.mark.parametrize("gone", ["the file", "the directory", "another file in its place"])
def test_what_was_deleted_is_made_again_with_every_line(gone: str, log: Log, tmp_path: Path) -> None:
    log.add(50)
    log.lines.sync()
    log.add(50)
    assert log.lines.flush(PATIENCE_S)
    if gone == "the file":
        log.path.unlink()
    elif gone == "the directory":
        shutil.rmtree(log.path.parent)
    else:
        log.path.rename(log.path.with_name("moved"))
        log.path.write_text('{"number": -1}\n')
    log.add(10)
    assert log.whole()
    assert len(log.said) == 1
    assert "was deleted or replaced while the run writes to it" in log.said[0]


def test_what_was_cut_short_keeps_what_is_there_and_says_what_is_lost(log: Log) -> None:
    log.add(50)
    log.lines.sync()
    log.add(20)
    assert log.lines.flush(PATIENCE_S)
    size = len(log.path.read_bytes())
    os.truncate(log.path, size // 7 * 2 + 3)  # in the middle of a line of those that the disk had confirmed
    log.add(10)
    log.lines.settle(PATIENCE_S)
    found = log.numbers()
    assert found[-30:] == list(range(50, 80)), "what memory has is written again"
    assert found[:-30] == list(range(len(found) - 30)), "before it are whole lines"
    assert 0 < len(found) - 30 < 50
    assert "bytes of lines are lost" in log.said[0]


def test_what_others_append_does_not_stay(log: Log) -> None:
    log.add(5)
    assert log.whole()
    with log.path.open("a") as file:
        file.write('{"number": -1}\n' * 100)
    log.add(1)
    assert log.whole()
    assert not log.said


def test_what_a_disk_took_and_lost_is_written_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imitates a network file system: writing succeeds, and syncing reports that nothing was stored."""
    log.add(30)
    log.lines.sync()
    confirmed = log.path.stat().st_size
    log.add(30)
    assert log.lines.flush(PATIENCE_S)
    whole_sync, failures = os.fsync, [True]

    def sync(descriptor: int) -> None:
        if failures and in_writer(log.path):
            failures.pop()
            os.ftruncate(descriptor, confirmed)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        whole_sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    log.lines.sync()
    assert log.whole()
    assert not failures
    assert "Disk quota exceeded" in log.said[0]


def test_a_file_that_the_server_has_forgotten_is_opened_anew(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add(30)
    log.lines.sync()
    log.add(5)
    assert log.lines.flush(PATIENCE_S)
    stale = log.lines._file

    def of(call: Any) -> Any:
        def tried(file: int, *arguments: Any) -> Any:
            if file == stale and in_writer(log.path):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return call(file, *arguments)

        return tried

    # The new one must not get the number of the old one.
    monkeypatch.setattr(os, "close", lambda file, close=os.close: close(file) if file != stale else None)
    for name in ("fstat", "pwrite", "pread", "fsync", "ftruncate"):
        monkeypatch.setattr(os, name, of(getattr(os, name)))
    log.add(10)
    assert log.whole()
    assert log.lines._file != stale


def test_half_a_line_on_a_full_disk_is_not_seen_twice(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_write, failures = os.pwrite, [1, 2, 3]

    def write(file: int, content: bytes, position: int) -> int:
        if in_writer(log.path) and failures:
            if failures.pop() % 2:
                return whole_write(file, content[: len(content) // 2], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole_write(file, content, position)

    monkeypatch.setattr(os, "pwrite", write)
    log.add(3)
    assert log.whole()
    assert not failures


def test_nobody_waits_for_a_disk_that_does_not_answer(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_write, answers = os.pwrite, threading.Event()

    def write(*arguments: Any) -> int:
        if in_writer(log.path):
            assert answers.wait(PATIENCE_S)
        return whole_write(*arguments)

    monkeypatch.setattr(os, "pwrite", write)
    log.add(1000)
    assert not log.lines.flush(0.1)
    with pytest.raises(RunError, match=r"the disk does not answer\): 1,000 lines of it may be lost"):
        log.lines.settle(0.1)
    answers.set()
    assert log.whole()


def test_memory_is_not_without_bounds(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.run_dir.json_lines._MOST", 20)
    monkeypatch.setattr("pretrain.run_dir.json_lines._BATCH", 5)
    log.add(200)
    assert log.whole(), "what is written makes room"
    assert len(log.lines._unconfirmed) <= 20

    def write(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        log.add(19)
        assert not log.lines.overflows
        log.add(1)
        assert log.lines.overflows
    assert log.whole()


def test_a_directory_that_belongs_to_another_run_ends_this_one(tmp_path: Path) -> None:
    def taken() -> None:
        raise RunError("another run writes to it")

    path = tmp_path / "run" / "metrics.jsonl"
    lines = JsonLinesWriter(path, lambda line: True, regain=taken)
    shutil.rmtree(path.parent)
    lines.append({"number": 1})
    deadline = time.monotonic() + PATIENCE_S
    while not lines.overflows:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(RunError, match="another run"):
        lines.check()
    with pytest.raises(RunError, match="another run"):
        lines.settle(1.0)
    assert not path.parent.exists()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_every_line_is_there_once(seed: int, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)

    def failing(call: Any) -> Any:
        def tried(*arguments: Any, **options: Any) -> Any:
            if in_writer(log.path) and random.random() < 0.2:
                code = random.choice((errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE))
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return tried

    for name in ("open", "pwrite", "fsync", "ftruncate", "replace"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    others = Random(-seed)
    for _ in range(60):
        log.add(others.randrange(8))
        match others.randrange(6):
            case 0:
                log.path.unlink(missing_ok=True)
            case 1:
                log.lines.sync()
            case 2:
                log.lines.flush(0.05)
    assert log.whole()
