"""How commands read what is typed: one parser for all verbs, and the kinds of arguments that several share."""

import argparse
import math
import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError

_LONGEST_NAME = 255  # bytes, on any file system in use
_END = """\
exit status: 0 done, 1 failed, 2 bad usage or config,
75 stopped by a signal after saving (start again to go on)"""


class Parser(argparse.ArgumentParser):
    """Of `pretrain VERB`. Options are written in full; `key=value` may stand anywhere between them. A path may begin
    with `~`. `examples` are shown by --help: what follows `pretrain VERB`, a line each."""

    def __init__(self, verb: str, description: str, examples: tuple[str, ...] = ()) -> None:
        self._verb = verb
        shown = "".join(f"{f'  pretrain {verb} {example}'.rstrip()}\n" for example in examples)
        super().__init__(
            prog=f"pretrain {verb}",
            allow_abbrev=False,
            description=description,
            epilog=(f"examples:\n{shown}\n" if shown else "") + _END,
            formatter_class=_Help,
        )

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """As argparse's, with a short name for values, and paths that may begin with `~`."""
        if settings.get("type") is Path:
            settings["type"] = path
        named = names[0].startswith("-")
        if "choices" not in settings and (not named or settings.get("type") in _METAVARS):
            settings.setdefault("metavar", _METAVARS[settings["type"]] if named else names[0].upper())
        return super().add_argument(*names, **settings)

    def add_config(
        self,
        help: str,
        overrides: str = "data.path=datasets/book",
        keys: str = "pretrain keys",
        required: bool = True,
    ) -> None:
        """`config` and, after it, `overrides`: an example of them, and the command that lists their keys."""
        self.add_argument(
            "config",
            metavar="CONFIG",
            nargs=None if required else "?",
            help=f"{help}; or the name of one that comes with pretrain",
        )
        self.add_overrides(f"such as {overrides}", keys)

    def add_checkpoint(self) -> None:
        """`checkpoint`: a path."""
        self.add_argument(
            "checkpoint",
            type=path,
            metavar="CHECKPOINT_OR_RUN",
            help="a run (its newest valid checkpoint), or a checkpoint",
        )

    def add_trust_code(self) -> None:
        """`trust_code`: see `open_run`."""
        self.add_argument(
            "--trust-code",
            action="store_true",
            help="call functions of attention that the run's config names: Python code of whoever made the run",
        )

    def add_overrides(self, help: str, keys: str = "pretrain keys") -> None:
        """`overrides`: any number of dotted keys with their values."""
        self.add_argument(
            "overrides", nargs="*", default=[], metavar="key=value", help=f"{help}; `{keys}` lists what there is"
        )

    def add_nproc(self, help: str) -> None:
        """`nproc`: ranks to start here, or None."""
        self.add_argument("--nproc", type=count, help=help)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Raises ConfigError where `argv` can't be read. Leaves with status 0 after --help."""
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            typed = unknown[0].partition("=")[0]
            near = close_matches(typed, self._option_string_actions)
            hint = did_you_mean(near, f"`{self.prog} --help` shows what it takes")
            raise ConfigError(f"{self._verb} knows no {typed}: {hint}")
        return options

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{self._verb}: {message.removeprefix('argument ')}: `{self.prog} --help` shows what it takes"
        )


class _Help(argparse.RawDescriptionHelpFormatter):
    """With room for the names of options; examples as they are written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def path(text: str) -> Path:
    """`~` is the home directory."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text is no path")
    return Path(os.path.expanduser(text))


def utf8(text: str) -> str:
    """Text, where a path may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!a} is not text in UTF-8") from None
    return text


def count(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def at_least_zero(text: str) -> int:
    """A number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def names(text: str) -> list[str]:
    """Separated by commas."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """Separated by commas."""
    if not all(number.strip().isdecimal() for number in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers separated by commas, such as 0,1,8")
    return [int(number) for number in text.split(",")]


def amount(text: str) -> float:
    """A number above 0, which may end with k, M, B or T: 125M, 1e21."""
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1:], 1.0)
    try:
        value = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 125M or 1e21")
    return value


def amounts(text: str) -> list[float]:
    """Separated by commas."""
    return [amount(one) for one in text.split(",")]


_METAVARS: dict[Any, str] = {path: "PATH", utf8: "TEXT", count: "N", int: "N", float: "X", names: "A,B,...",
                             numbers: "N,N,...", amount: "X", amounts: "X,X,..."}  # fmt: skip


def check_writable(path: Path, option: str = "--out") -> None:
    """Raises ConfigError before the work, not after it, if `path`, which `option` names, can't become a file. A device
    or a pipe would be replaced by one."""
    there = os.path.exists(path)
    if (there and not (os.path.isfile(path) and os.access(path, os.W_OK))) or not _takes_files(path.parent, path):
        raise ConfigError(f"{option} {path} cannot be written: name a file in a directory that can")


def check_picture(path: Path, option: str) -> None:
    """Raises ConfigError before the work if `path`, which `option` names, can't become a PNG."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{option} {path}: pictures are PNG files: name one that ends with .png")
    check_writable(path, option)


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
