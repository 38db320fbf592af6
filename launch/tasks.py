"""Commands of a job array: a file with one per line, checked before anything is queued."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from data_pipeline.common.atomic import atomic_write
from pretrain.errors import ConfigError

FILE = "tasks.jsonl"
"""File name in the folder of an array's records."""
_MOST = 10_000


@dataclass(frozen=True)
class ArrayTask:
    """Command of one task."""

    command: tuple[str, ...]
    """Words after `pretrain`."""
    run_dir: str | None
    """Directory of a training run; None: the command does not train."""


def lines(path: Path) -> list[list[str]]:
    """Words of each command, without a leading `pretrain`, empty lines and comments. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = command_words(line, comments=True)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        if words:
            found.append(words)
    if not found or len(found) > _MOST:
        raise ConfigError(f"{path} has {len(found):,} commands: 1 to {_MOST:,} make an array, a line each")
    return found


def command_words(text: str, comments: bool = False) -> list[str]:
    """Words of a command after `pretrain`, which may be omitted. Raises ValueError for quotes that are not closed."""
    words = shlex.split(text, comments=comments)
    return words[1:] if words[:1] == ["pretrain"] else words


def write(path: Path, tasks: Sequence[ArrayTask]) -> None:
    atomic_write(path, "".join(f"{json.dumps(asdict(task))}\n" for task in tasks).encode())


def read(path: Path, number: int) -> ArrayTask:
    """Task of this number. Raises ConfigError if there is none."""
    try:
        return every(path)[number]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path} has no task {number} ({error}): submit the array again") from None


def every(path: Path) -> list[ArrayTask]:
    """All tasks of a file that `write` has written."""
    found = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [ArrayTask(tuple(values["command"]), values["run_dir"]) for values in found]
