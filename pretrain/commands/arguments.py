"""How commands read what is typed: one parser for all verbs, and the kinds of arguments that several share."""

import argparse
import os
from pathlib import Path
from tempfile import TemporaryFile

from pretrain.errors import ConfigError

_LONGEST_NAME = 255  # bytes, on any file system in use


class Parser(argparse.ArgumentParser):
    """Of `pretrain VERB`. Options are written in full; `key=value` may stand anywhere between them."""

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(prog=f"pretrain {verb}", allow_abbrev=False, description=description)

    def add_config(self, help: str) -> None:
        """`config` and, after it, `overrides`."""
        self.add_argument("config", help=help)
        self.add_overrides("such as data.path=datasets/book")

    def add_checkpoint(self) -> None:
        """`checkpoint`: a path."""
        self.add_argument("checkpoint", type=Path, help="a run (its newest valid checkpoint), or a checkpoint")

    def add_overrides(self, help: str) -> None:
        """`overrides`: any number of dotted keys with their values."""
        self.add_argument("overrides", nargs="*", metavar="key=value", help=help)

    def add_nproc(self, help: str) -> None:
        """`nproc`: ranks to start here, or None."""
        self.add_argument("--nproc", type=count, help=help)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Leaves with status 2 and a usage line where `argv` can't be read."""
        return self.parse_intermixed_args(argv)


def count(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of at least 1")
    return number


def names(text: str) -> list[str]:
    """Separated by commas."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """Separated by commas."""
    return [int(number) for number in text.split(",")]


def check_writable(path: Path) -> None:
    """Raises ConfigError before the work, not after it, if `path` can't become a file."""
    if os.path.isdir(path) or not _takes_files(path.parent, path):
        raise ConfigError(f"--out {path} cannot be written: name a file in a directory that can")


def check_directory(option: str, path: Path) -> None:
    """Likewise, if `path` is not a directory that can be written, nor can become one. `option` names it."""
    there = next((one for one in (path, *path.parents) if os.path.exists(one)), Path())
    if not _takes_files(there, path):
        why = "cannot be written" if os.path.isdir(there) else "is a file"
        raise ConfigError(f"{option} {path}: {there} {why}: name a directory that can be written")


def _takes_files(directory: Path, path: Path) -> bool:
    """Whether `path` can be made in `directory`, of which it names something: found out by a file that goes at once, as
    what permissions say is not the same."""
    try:
        with TemporaryFile(dir=directory):
            return all(len(os.fsencode(part)) <= _LONGEST_NAME for part in path.parts)
    except (OSError, ValueError):
        return False
