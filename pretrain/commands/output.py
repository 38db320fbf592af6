"""Output of a command: lines that it prints, or writes to the file of `--out`."""

from collections.abc import Callable, Iterable
from pathlib import Path

from data_pipeline.common.atomic import atomic_write
from pretrain.errors import RunError
from pretrain.process.streams import is_lost


def print_lines(lines: Iterable[str]) -> None:
    """Prints each line as it comes, until the reader is gone."""
    for line in lines:
        print(line, flush=True)
        if is_lost():
            return


def write_lines(out: Path, lines: Iterable[str]) -> None:
    """Writes the file of `--out` atomically. Raises RunError."""
    try:
        atomic_write(out, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise RunError(f"--out {out} cannot be written ({error.strerror})") from None


def write_file(path: Path, option: str, write: Callable[[Path], object]) -> None:
    """Calls `write` with the `path` that was given to `option`. Raises RunError."""
    try:
        write(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}): name another file with {option}") from None
