"""Where a command writes is looked at before its work."""

import os
from pathlib import Path

import pytest

from pretrain.commands.arguments import check_directory, check_writable
from pretrain.errors import ConfigError


def test_places_that_can_be_written_are_taken_and_left_as_they_were(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.json")
    check_directory("--out", tmp_path)
    check_directory("--out", tmp_path / "new" / "deeper")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "/proc/x", "/dev/null"])
def test_what_can_become_no_directory_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name a directory that can be written"):
        check_directory("--out", tmp_path / name)


@pytest.mark.parametrize("name", [".", "nowhere/file", "x" * 300, "/proc/x", "pipe", "/dev/null"])
def test_what_can_become_no_file_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="name a file in a directory that can"):
        check_writable(tmp_path / name)
