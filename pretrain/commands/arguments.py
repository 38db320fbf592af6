"""Command lines of all verbs: one parser, and the types of arguments that several verbs share."""

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from data_pipeline.common.suggestions import close_matches, did_you_mean
from pretrain.errors import ConfigError

_LONGEST_NAME = 255  # bytes, on any file system in use
_STATUS = "exit status: 0 done, 1 failed, 2 bad usage or config"
_STOPPED = ",\n75 stopped by a signal after saving (run the same command again to resume)"


_lists = ContextVar("lists", default=False)


class ParserFound(Exception):
    """A command has built its parser, inside `finding_parsers`."""

    def __init__(self, parser: "Parser") -> None:
        super().__init__()
        self.parser = parser


@contextmanager
def finding_parsers() -> Iterator[None]:
    """Inside, a command that is called without arguments raises ParserFound instead of doing its work."""
    token = _lists.set(True)
    try:
        yield
    finally:
        _lists.reset(token)


class Parser(argparse.ArgumentParser):
    """Parser of `pretrain VERB`. Options are written in full, with `key=value` anywhere between them. A path may begin
    with `~`. `examples` are shown by --help, a line each: what follows `pretrain VERB`. `resumes`: a signal stops the
    command after it has saved."""

    def __init__(self, verb: str, description: str, examples: tuple[str, ...] = (), *, resumes: bool = False) -> None:
        self._verb = verb
        shown = "".join(f"{f'  pretrain {verb} {example}'.rstrip()}\n" for example in examples)
        super().__init__(
            prog=f"pretrain {verb}",
            add_help=False,
            allow_abbrev=False,
            description=description,
            epilog=(f"examples:\n{shown}\n" if shown else "") + _STATUS + (_STOPPED if resumes else ""),
            formatter_class=_Help,
        )
        super().add_argument("-h", "--help", action="help", help="Show this help message and exit.")

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """argparse's method, with short metavars, and paths that may begin with `~`."""
        if settings.get("type") is Path:
            settings["type"] = path
        named = names[0].startswith("-")
        if "choices" not in settings and (not named or settings.get("type") in _METAVARS):
            settings.setdefault("metavar", _METAVARS[settings["type"]] if named else names[0].upper())
        return super().add_argument(*names, **settings)

    def add_config(
        self,
        note: str = "",
        overrides: str = "data.path=datasets/book",
        keys: str = "pretrain keys",
        required: bool = True,
    ) -> None:
        """Adds `config`, with a sentence on its use, and then `overrides`, with an example and the command that lists
        their keys."""
        self.add_argument(
            "config",
            metavar="CONFIG",
            nargs=None if required else "?",
            help=f"YAML file, or the name of a config that comes with pretrain. {note}".rstrip(),
        )
        self.add_overrides(overrides, keys)

    def add_checkpoint(self) -> None:
        """Adds `checkpoint`, a path."""
        self.add_argument(
            "checkpoint",
            type=path,
            metavar="CHECKPOINT_OR_RUN",
            help="Run directory (its newest valid checkpoint is used) or checkpoint directory.",
        )

    def add_launched_run(self) -> None:
        """Adds `run`, the path of what `pretrain launch` submitted."""
        self.add_argument(
            "run", type=path, help="Run directory (run.dir), or the --directory of a job array or a dataset build."
        )

    def add_trust_code(self) -> None:
        """Adds `trust_code`: see `find_checkpoints`."""
        self.add_argument(
            "--trust-code",
            action="store_true",
            help="Run the Python mask functions that the run's config names (default: refuse such a run).",
        )

    def add_model(self, use: str, default: str = "the only one of the run") -> None:
        """Adds `model`, one of a run that trains two: see `one_model`. `use`: what is done with it."""
        self.add_argument(
            "--model",
            choices=("discriminator", "generator"),
            help=f"Model to {use}, of a run that trains two (ELECTRA). Default: {default}.",
        )

    def add_overrides(self, example: str, keys: str = "pretrain keys", what: str = "Config override") -> None:
        """Adds `overrides`: any number of dotted keys with their values."""
        self.add_argument(
            "overrides",
            nargs="*",
            default=[],
            metavar="key=value",
            help=f"{what}, such as {example}; `{keys}` lists the keys.",
        )

    def add_run_overrides(self) -> None:
        """Adds `overrides` of the config that a checkpoint was trained with."""
        self.add_overrides("precision=fp32", what="Override of the run's config")

    def add_nproc(self, help: str) -> None:
        """Adds `nproc`: local ranks to start, or None."""
        self.add_argument("--nproc", type=count, help=help)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Raises ConfigError for a command line that can't be parsed. Exits with status 0 after --help."""
        if _lists.get() and not argv:
            raise ParserFound(self)
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            typed = unknown[0].partition("=")[0]
            near = close_matches(typed, self._option_string_actions)
            hint = did_you_mean(near, f"see `{self.prog} --help`")
            raise ConfigError(f"{self._verb} knows no {typed}: {hint}")
        config = getattr(options, "config", None)
        if isinstance(config, str) and "=" in config and not os.path.exists(config):
            self.error(f"CONFIG is missing: {config} is an override, and follows it")
        return options

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self._verb}: {message.removeprefix('argument ')}; see `{self.prog} --help`")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formatter with a wide column for options, and examples as they are written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def path(text: str) -> Path:
    """A path, in which `~` is the home directory."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text is no path")
    return Path(os.path.expanduser(text))


def utf8(text: str) -> str:
    """Text in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!a} is not text in UTF-8") from None
    return text


def count(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 1")
    return int(text)


def at_least_zero(text: str) -> int:
    """An integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 0")
    return int(text)


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """Integers separated by commas."""
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
    """Amounts separated by commas."""
    return [amount(one) for one in text.split(",")]


_METAVARS: dict[Any, str] = {path: "FILE", utf8: "TEXT", count: "N", at_least_zero: "N", int: "N", float: "X",
                             names: "A,B,...", numbers: "N,N,...", amount: "X", amounts: "X,X,..."}  # fmt: skip
"""metavars of options by type; one that names a directory says `DIR` itself"""


def check_writable(path: Path, option: str = "--out") -> None:
    """Raises ConfigError, before any work, if the `path` given to `option` can't be written as a file. A device or a
    pipe would be replaced by one."""
    there = os.path.exists(path)
    if (there and not (os.path.isfile(path) and os.access(path, os.W_OK))) or not _takes_files(path.parent, path):
        raise ConfigError(f"{option} {path} cannot be written: name a file in a directory that can")


def check_picture(path: Path, option: str) -> None:
    """Raises ConfigError, before any work, if the `path` given to `option` can't be written as a PNG."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{option} {path}: pictures are PNG files: name one that ends with .png")
    check_writable(path, option)


def check_directory(option: str, path: Path) -> None:
    """Raises ConfigError, before any work, if the `path` given to `option` is not, and can't become, a writable
    directory."""
    there = next((one for one in (path, *path.parents) if os.path.exists(one)), Path())
    if not _takes_files(there, path):
        why = "cannot be written" if os.path.isdir(there) else "is a file"
        raise ConfigError(f"{option} {path}: {there} {why}: name a directory that can be written")


def _takes_files(directory: Path, path: Path) -> bool:
    """Whether `path` can be created in `directory`, tried with a temporary file, as permission bits alone don't say."""
    try:
        with TemporaryFile(dir=directory):
            return all(len(os.fsencode(part)) <= _LONGEST_NAME for part in path.parts)
    except (OSError, ValueError):
        return False
