"""Disks that fill up, turn read-only or fail now and then. Mounts are real, and taken away again.

with small_disk(tmp_path / "disk", 1 << 20) as disk: ...     # a tmpfs of its own; skips where mounting is refused
"""

import errno
import io
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """A disk in memory at `place`. `resize` makes it larger."""
    place.mkdir()
    _mount_or_skip("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", place)
    try:
        yield place
    finally:
        _unmount(place)


def resize(place: Path, size_bytes: int) -> None:
    """Changes the size of a `small_disk`."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", place], check=True)


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Makes a `small_disk` read-only inside the block. No file on it may be open for writing."""
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)


class BreakableDisk:
    """An ext4 in a file, which its kernel makes read-only under open files, as after an error of the medium."""

    def __init__(self, image: Path, place: Path, size_bytes: int) -> None:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("there is no mkfs.ext4 here")
        self._image, self.place = image, place
        with image.open("wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        place.mkdir()
        self._mount()

    def fail(self) -> None:
        """From here on it is read-only, until `repair`."""
        (device,) = [
            line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if str(self.place) in line
        ]
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """No file of it may be open."""
        _unmount(self.place)
        subprocess.run(["e2fsck", "-fy", self._image], capture_output=True)  # its status says what was repaired
        self._mount()

    def __enter__(self) -> "BreakableDisk":
        return self

    def __exit__(self, *_: object) -> None:
        _unmount(self.place)

    def _mount(self) -> None:
        _mount_or_skip("-o", "loop,errors=remount-ro", self._image, self.place)


def fill(place: Path) -> Path:
    """Takes all the room that is left. Returns the file to remove for having it back."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return ballast


def fails_now_and_then(directory: Path, share: float, seed: int) -> None:
    """From here on, what a run's own threads ask of files in `directory` fails with this probability: with one of the
    errors that disks and file servers have, other ones on each rank. What training itself reads does not."""
    whole = {name: getattr(os, name) for name in ("open", "mkdir", "rename", "replace", "fsync", "pwrite", "listdir")}
    whole_io_open = io.open
    codes = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EROFS, errno.ETIMEDOUT)
    randoms: dict[str, Random] = {}

    def maybe(path: Any) -> None:
        thread = threading.current_thread().name
        if thread not in ("saver", "metrics.jsonl", "events.jsonl"):
            return
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        if not name.startswith(str(directory)):
            return
        random = randoms.setdefault(thread, Random(f"{seed}/{os.environ.get('RANK')}/{thread}"))
        if random.random() < share:
            code = random.choice(codes)
            raise OSError(code, os.strerror(code), name)

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def tried(path: Any, *arguments: Any, **options: Any) -> Any:
            maybe(path)
            return call(path, *arguments, **options)

        return tried

    for name, call in whole.items():
        setattr(os, name, failing(call))
    io.open = failing(whole_io_open)  # type: ignore[assignment]  # which pathlib asks for by name


def _mount_or_skip(*arguments: object) -> None:
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is not possible here: {done.stderr.strip()}")


def _unmount(place: Path) -> None:
    if subprocess.run(["umount", place], capture_output=True).returncode != 0:
        subprocess.run(["umount", "--lazy", place], capture_output=True)
