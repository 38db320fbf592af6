"""Files of JSON lines, one object per line: reading, appending, and durable appending during a run.

    lines = JsonLinesWriter(path, keep)     # each line is written once, in order, whatever the process or the disk does
    lines.append({"step": 1})

A thread writes, so that training never waits for a disk. Lines that cannot be written stay in memory and are retried
every few seconds; so do lines that the disk has not confirmed (`sync`), as a disk that fails may lose them. A file
that was deleted or truncated is restored from the open file and memory.
"""

import errno
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write
from pretrain.errors import RunError, unwritable

_AGAIN_S = 2.0
_MOST = 100_000  # lines in memory
_BATCH = 1000  # lines written at a time
_NEWEST_BYTES = 2**18  # read from the end of a file that grows with the run: hundreds of lines


class JsonLinesWriter:
    """Appends to `path`, after removing the lines for which `keep` is false. For any thread.

    `warn` gets a sentence when the file can't be written, and when it can again; the writing thread calls it. `regain`
    is called there before a file is restored: it creates the missing directory, and raises RunError if the run must
    end. Raises RunError if the file can't be opened at first.
    """

    def __init__(
        self,
        path: Path,
        keep: Callable[[dict[str, Any]], bool],
        warn: Callable[[str], None] = lambda sentence: None,
        regain: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self._warn, self._regain = path, warn, regain
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()  # not written yet
        self._wants_sync = self._closing = False
        self._trouble: OSError | None = None
        self._ended: RunError | None = None
        # For the writing thread only: the file has `_held` bytes that the disk has confirmed, and then these lines.
        self._unconfirmed: deque[bytes] = deque()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut(path, keep)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            self._held = self._end = os.fstat(self._file).st_size
        except OSError as error:
            raise unwritable(path, error) from None
        self._thread = threading.Thread(target=self._work, name=path.name, daemon=True)
        self._thread.start()

    def append(self, line: dict[str, Any]) -> None:
        """Appends a line, without waiting for the disk. Numbers that are not finite become null."""
        encoded = _encode(line)
        with self._changed:
            self._pending.append(encoded)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits for the file to have every line so far. Returns whether it does; in the writing thread, at once."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._missing or self._ended is not None, timeout_s)

    def sync(self) -> None:
        """Waits until the disk has confirmed every line so far, or the file can't be written, of which `warn` tells."""
        with self._changed:
            self._wants_sync = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._wants_sync or self._trouble is not None or self._closed)

    def check(self) -> None:
        """Raises RunError if this run may no longer write to the file."""
        if self._ended is not None:
            raise self._ended

    def settle(self, timeout_s: float) -> None:
        """Raises RunError if the disk does not confirm every line so far within this time."""
        with self._changed:
            self._wants_sync = True
            self._changed.notify_all()
            confirmed = self._changed.wait_for(lambda: not self._wants_sync or self._ended is not None, timeout_s)
        self.check()
        if not confirmed:
            why = self._trouble.strerror if self._trouble is not None else "the disk does not answer"
            number = len(self._pending) + len(self._unconfirmed)
            raise RunError(f"{self.path} cannot be written ({why}): {number:,} lines of it may be lost")

    @property
    def in_trouble(self) -> bool:
        """Whether lines are waiting because the disk refuses them."""
        return self._trouble is not None

    @property
    def overflows(self) -> bool:
        """Whether so many lines are waiting that the run must stop."""
        return len(self._pending) >= _MOST or self._ended is not None

    def close(self, timeout_s: float = 5.0) -> int:
        """Writes the remaining lines, for at most this time. Returns the number of lost lines."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return self._missing

    @property
    def _missing(self) -> int:
        """Number of lines that the file lacks, or may lack."""
        return len(self._pending) + (len(self._unconfirmed) if self._trouble is not None else 0)

    @property
    def _closed(self) -> bool:
        return not self._thread.is_alive()

    def _work(self) -> None:
        while self._ended is None:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._wants_sync or self._closing)
                if not self._pending and not self._wants_sync:
                    break
                lines, syncs = list(islice(self._pending, _BATCH)), self._wants_sync
            try:
                self._write(lines)
                if syncs:
                    os.fsync(self._file)
            except OSError as error:
                self._retry_later(error)
            except Exception as error:
                with self._changed:
                    self._ended = error if isinstance(error, RunError) else RunError(f"{self.path}: {error!r}")
                    self._changed.notify_all()
            else:
                self._confirm(lines, syncs)
        with suppress(OSError):
            os.close(self._file)

    def _write(self, lines: list[bytes]) -> None:
        if self._trouble is not None or not self._is_intact():
            self._restore()
        self._write_at(self._end, b"".join(lines))

    def _confirm(self, lines: list[bytes], synced: bool) -> None:
        self._unconfirmed.extend(lines)
        self._end += sum(map(len, lines))
        while self._unconfirmed and (synced or len(self._unconfirmed) > _MOST):
            self._held += len(self._unconfirmed.popleft())
        with self._changed:
            for _ in lines:
                self._pending.popleft()
            over = self._trouble is not None
            self._trouble = None
            # A sync requested during this one may be about later lines.
            self._wants_sync = self._wants_sync and not (synced and not self._pending)
            self._changed.notify_all()
        if over:
            self._warn(f"{self.path} is written again, with all lines since then")

    def _retry_later(self, error: OSError) -> None:
        with self._changed:
            first = self._trouble is None
            self._trouble = error
            self._changed.notify_all()
        if first:
            self._warn(
                f"{self.path} cannot be written ({error.strerror}): its lines are kept in memory, up to {_MOST:,}, and "
                "tried again; free the disk or restore access to it"
            )
        time.sleep(_AGAIN_S)

    def _is_intact(self) -> bool:
        """Whether the path leads to the open file, and its size is what was written."""
        return self._is_there() and os.fstat(self._file).st_size == self._end

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno == errno.ESTALE:  # of the open file; opening the path says what is there
                return False
            raise

    def _restore(self) -> None:
        """Opens the file at the path, and restores what was written to it. If it is missing or another file than the
        open one, it is replaced, unless the open one is stale on a network file system."""
        self._regain()
        recent = b"".join(self._unconfirmed)
        if not self._is_there() and (content := self._content()) is not None:
            atomic_write(self.path, content + recent)
            self._warn(f"{self.path} was deleted or replaced while the run writes to it: it was restored")
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):
            os.close(self._file)
        self._file = file
        if (size := os.fstat(file).st_size) < self._held:
            self._warn(f"{self.path} was cut short from outside: {self._held - size:,} bytes of lines are lost")
            self._held = os.pread(file, size, 0).rfind(b"\n") + 1
        self._write_at(self._held, recent)
        self._end = self._held + len(recent)
        os.ftruncate(file, self._end)

    def _content(self) -> bytes | None:
        """Bytes that the disk has confirmed, read from the open file; None if that is stale on its server."""
        try:
            return b"".join(_read_at(self._file, self._held))
        except OSError as error:
            if error.errno == errno.ESTALE:
                return None
            raise

    def _write_at(self, position: int, content: bytes) -> None:
        while content:
            written = os.pwrite(self._file, content, position)
            position, content = position + written, content[written:]


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Objects on the complete lines of `path`; none if the file is missing. A crash can leave a torn line and a power
    failure zeros, both of which are ignored. Raises OSError."""
    return _objects(path.read_bytes().split(b"\n")[:-1]) if path.exists() else []


def newest_json_lines(path: Path) -> list[dict[str, Any]]:
    """Objects on the last complete lines of `path`, some hundreds; none if the file is missing or cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _NEWEST_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return []
    return _objects(lines[1:] if size > _NEWEST_BYTES else lines)


def append_json_lines(path: Path, *values: dict[str, Any]) -> None:
    """Appends lines at once, without a thread and without waiting for the disk. Raises OSError."""
    with path.open("ab+") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
        torn = size and file.read(1) != b"\n"
        file.write((b"\n" if torn else b"") + b"".join(map(_encode, values)))


def finite(value: Any) -> Any:
    """`value` with null for numbers that are not finite, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_at(file: int, size: int) -> Iterator[bytes]:
    """Yields the first `size` bytes of an open file, or as many as it has."""
    position = 0
    while position < size and (part := os.pread(file, size - position, position)):
        yield part
        position += len(part)


def _cut(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrites `path` without damaged lines and those for which `keep` is false. Atomic; always a new file, so that a
    suspended rank of an earlier start, which wakes and still writes, does not write to it."""
    if path.exists():
        atomic_write(path, b"".join(_encode(line) for line in read_json_lines(path) if keep(line)))


def _objects(lines: list[bytes]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        with suppress(ValueError):  # torn by a crash
            found.append(json.loads(line))
    return [value for value in found if isinstance(value, dict)]


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(finite(line), allow_nan=False).encode() + b"\n"
