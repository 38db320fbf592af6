"""Files appear whole and on the disk, or not at all."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from data_pipeline.common.atomic import atomic_path, atomic_write


def test_the_bytes_are_on_the_disk_before_the_name_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "file"
    synced: list[tuple[bool, int]] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((path.exists(), os.fstat(number).st_size)))
    with atomic_path(path) as scratch:
        scratch.write_bytes(b"12345")
    assert synced == [(False, 5)]
    assert path.read_bytes() == b"12345"
    assert os.listdir(path.parent) == ["file"]
    synced.clear()
    with atomic_path(path, durable=False) as scratch:
        scratch.write_bytes(b"6")
    assert (synced, path.read_bytes()) == ([], b"6")


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with suppress(KeyboardInterrupt), atomic_path(tmp_path / "file") as scratch:
        scratch.write_bytes(b"half")
        raise KeyboardInterrupt
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_two_writers_of_one_file_have_names_of_their_own(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "file") as first, atomic_path(tmp_path / "file") as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert (tmp_path / "file").read_bytes() == b"first"  # which ended last


def test_what_a_killed_writer_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "file.tmp").write_bytes(b"much longer than what follows")
    atomic_write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]
