"""A file of JSON lines, each written whole, in order and once, whatever happens to the process or the disk.

A thread writes, so that training never waits for a disk. What cannot be written stays in memory and is tried again
every few seconds. So does what the disk has not confirmed (`sync`): a disk that fails may lose what it has taken. A
file that was deleted or cut short is made again, as the open file and memory have it.
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


class Lines:
    """Appends to `path`, whose lines that `keep` refuses are dropped first. For any thread.

    `warn` gets a sentence when the file can't be written, and when it can again; from the thread that writes. `regain`
    is called there before a file is made again: it makes the directory that should be there, and raises RunError if the
    run is to end. Raises RunError if the file can't be opened at first.
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
        # Of the thread that writes: the file has `_held` bytes that the disk has confirmed, and then these lines.
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
        """Returns at once. Values that are not finite, which JSON has no word for, become null."""
        encoded = _encode(line)
        with self._changed:
            self._pending.append(encoded)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Whether the file has every line so far within this time. Does not wait in the thread that writes."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._missing or self._ended is not None, timeout_s)

    def sync(self) -> None:
        """Has the disk hold every line so far. Returns without that if the file can't be written, as was said."""
        with self._changed:
            self._wants_sync = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._wants_sync or self._trouble is not None or self._closed)

    def check(self) -> None:
        """Raises RunError if the run may not write here any more."""
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
        """Whether lines wait for a disk that does not take them."""
        return self._trouble is not None

    @property
    def overflows(self) -> bool:
        """Whether memory should take no more."""
        return len(self._pending) >= _MOST or self._ended is not None

    def close(self, timeout_s: float = 5.0) -> int:
        """Writes what is left, as far as that is possible within this time. Returns how many lines are lost."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return self._missing

    @property
    def _missing(self) -> int:
        """Lines that the file lacks, or may lack."""
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
                self._suffer(error)
            except Exception as error:
                with self._changed:
                    self._ended = error if isinstance(error, RunError) else RunError(f"{self.path}: {error!r}")
                    self._changed.notify_all()
            else:
                self._wrote(lines, syncs)
        with suppress(OSError):
            os.close(self._file)

    def _write(self, lines: list[bytes]) -> None:
        if self._trouble is not None or not self._is_whole():
            self._make_again()
        self._write_at(self._end, b"".join(lines))

    def _wrote(self, lines: list[bytes], synced: bool) -> None:
        self._unconfirmed.extend(lines)
        self._end += sum(map(len, lines))
        while self._unconfirmed and (synced or len(self._unconfirmed) > _MOST):
            self._held += len(self._unconfirmed.popleft())
        with self._changed:
            for _ in lines:
                self._pending.popleft()
            over = self._trouble is not None
            self._trouble = None
            # A sync that was asked for while this one went on may be about lines that came later.
            self._wants_sync = self._wants_sync and not (synced and not self._pending)
            self._changed.notify_all()
        if over:
            self._warn(f"{self.path} is written again, with all lines of the time between")

    def _suffer(self, error: OSError) -> None:
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

    def _is_whole(self) -> bool:
        """Whether the path leads to the open file, and that has what was written and no more."""
        return self._is_there() and os.fstat(self._file).st_size == self._end

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno == errno.ESTALE:  # of the open file; what the path leads to is found out by opening it
                return False
            raise

    def _make_again(self) -> None:
        """Opens what the path leads to, and has it hold what was written. Where that is another file than the open one,
        or none, it is replaced; an open file that the server has forgotten is not replaced, but looked for."""
        self._regain()
        recent = b"".join(self._unconfirmed)
        if not self._is_there() and (content := self._content()) is not None:
            atomic_write(self.path, content + recent)
            self._warn(f"{self.path} was deleted or replaced while the run writes to it: it was made again")
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
        """What the disk has confirmed, out of the open file; None if that is one that the server has forgotten."""
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of `path`; none where there is no such file. A crash can leave a torn one, and a power cut zeros;
    neither is a line."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line end is unfinished
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def finite(value: Any) -> Any:
    """`value` with null for numbers that are not finite, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_at(file: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes, or as many as there are."""
    position = 0
    while position < size and (part := os.pread(file, size - position, position)):
        yield part
        position += len(part)


def _cut(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrites `path` without damaged lines and without those that `keep` refuses. All or nothing; always as a new
    file, so that what a rank of an earlier start still writes, which was stopped and wakes, is not in it."""
    if path.exists():
        atomic_write(path, b"".join(_encode(line) for line in read_lines(path) if keep(line)))


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(finite(line), allow_nan=False).encode() + b"\n"
