"""Standard output and standard error, which may be closed, on a full disk, or a pipe that nobody reads any more.

A failed write raises no error: what is printed is dropped, and the command does its work to the end, as files, jobs or
other ranks may depend on it. The exit status says what was lost of standard output:

- After a closed pipe the status stays: the reader, such as `head`, has seen enough.
- After any other failure (a full disk, a closed descriptor) it is 1, with a sentence on stderr.
- Where files say all that a command prints (`print_a_log`), the status stays.
"""

import io
import os
import sys
from typing import Any

from pretrain.errors import RunError

_stdout: "_Stream | None" = None
_prints_a_log = False


class _Stream(io.FileIO):
    """A file descriptor of the process. `error` is that of the first write that failed."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.error: OSError | None = None

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            self.error = self.error or error
            return memoryview(content).nbytes


def guard_streams() -> None:
    """Makes `sys.stdout` and `sys.stderr` behave as above. Call it before the process opens files: closed descriptors
    are opened first, as the next file would take their numbers, and with them what is printed."""
    global _stdout
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # each write fails, as it would on a closed one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    _stdout = _Stream(1)
    sys.stdout, sys.stderr = _text(_stdout, sys.stdout), _text(_Stream(2), sys.stderr)


def print_a_log() -> None:
    """Declares that files have all that this command prints."""
    global _prints_a_log
    _prints_a_log = True


def is_lost() -> bool:
    """Whether a write to standard output has failed."""
    return _stdout is not None and _stdout.error is not None


def last_status(status: int) -> int:
    """Writes what is still buffered, and returns the exit status of a command that ends with `status`. For the end of a
    process."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    error = _stdout.error if _stdout is not None else None
    if status or error is None or isinstance(error, BrokenPipeError) or _prints_a_log:
        return status
    print(f"pretrain: standard output cannot be written ({error.strerror}): what was printed is lost", file=sys.stderr)
    return RunError.exit_status


def _text(stream: _Stream, before: Any) -> io.TextIOWrapper:
    """`stream` for text, set up as the stream that Python opened `before` (None: it was closed). Characters that the
    encoding lacks are escaped."""
    unbuffered = before is not None and before.write_through  # python -u
    return io.TextIOWrapper(
        stream if unbuffered else io.BufferedWriter(stream),
        encoding=before.encoding if before is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=stream.fileno() == 2 or stream.isatty(),
        write_through=unbuffered,
    )
