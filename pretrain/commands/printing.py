"""How commands print many lines, or write them to `--out`."""

from collections.abc import Iterable
from pathlib import Path

from data_pipeline.common.atomic import write_whole
from pretrain.errors import RunError


def show(lines: Iterable[str]) -> None:
    """Prints each line as it comes, so that a reader who has seen enough ends the rest (`process/streams.py`)."""
    for line in lines:
        print(line, flush=True)


def write_lines(out: Path, lines: Iterable[str]) -> None:
    """Writes the file of `--out`, all or nothing. Raises RunError."""
    try:
        write_whole(out, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise RunError(f"--out {out} cannot be written ({error.strerror})") from None
