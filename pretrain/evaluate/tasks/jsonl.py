"""Files of JSON lines, where an invalid line does not stop the others: it is reported with its number."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from data_pipeline.errors import DataError
from data_pipeline.reading.formats.decompress import read_blocks
from pretrain.errors import ConfigError

Made = TypeVar("Made")


@dataclass(frozen=True)
class Problem:
    """A document that could not be used."""

    where: str
    """file and line"""
    what: str


class BadDocument(Exception):
    """Error of a document: what is wrong with it, for people."""


def documents(path: Path, make: Callable[[dict[str, Any], str], list[Made]]) -> tuple[list[Made], list[Problem]]:
    """Results of `make` for each line, called with its object and its place, in order; and the problems: lines that are
    no JSON object, and those for which it raises BadDocument. Raises ConfigError for a file that cannot be read or
    holds nothing that can be used."""
    made: list[Made] = []
    problems: list[Problem] = []
    for number, line in _lines(path):
        where = f"{path.name}:{number}"
        try:
            made += make(_object(line), where)
        except BadDocument as error:
            problems.append(Problem(where, str(error)))
    if not made:
        first = f": {problems[0].where}: {problems[0].what}" if problems else ": it is empty"
        raise ConfigError(f"{path} holds no document that can be used{first}")
    return made, problems


class LinesOnDemand(Generic[Made]):
    """A file of which each line is one document: made on demand, as few of many lines may be needed. A line's place
    counts those that are not empty, from 0."""

    def __init__(self, path: Path, make: Callable[[dict[str, Any], str], list[Made]], about: str) -> None:
        """`about`: whatever else documents depend on. Raises ConfigError for a file that cannot be read or is empty."""
        self._name, self._make, self._lines = path.name, make, list(_lines(path))
        if not self._lines:
            raise ConfigError(f"{path} holds no document that can be used: it is empty")
        digest = hashlib.sha256(about.encode())
        for number, line in self._lines:
            digest.update(f"{number}:{line}\n".encode())
        self.digest = digest.hexdigest()[:16]
        """digest of all lines"""
        self.problems: list[Problem] = []
        """invalid lines among those that were read, in the order of reading"""
        self._made: dict[int, Made | None] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def example(self, place: int) -> Made | None:
        """The document there; None: what is wrong with it is one of `problems`."""
        if place not in self._made:
            number, line = self._lines[place]
            where = f"{self._name}:{number}"
            try:
                (self._made[place],) = self._make(_object(line), where)
            except BadDocument as error:
                self._made[place] = None
                self.problems.append(Problem(where, str(error)))
        return self._made[place]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, from 1; text) of each line that is not empty."""
    try:
        text = b"".join(read_blocks(path)).decode("utf-8-sig")
    except DataError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read ({error}): copy it again") from error
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _object(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"it is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise BadDocument(f"it is not an object of fields but {type(fields).__name__}")
    if "\\ud" in line.lower():  # an escape of half a character, which no tokenizer can read without the other half
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise BadDocument("it holds half of a character that is written in two halves") from None
    return fields


def text_of(fields: dict[str, Any], name: str) -> str:
    """A field that has to be text. Raises BadDocument where it is missing or something else."""
    if name not in fields:
        raise BadDocument(f"it has no '{name}', only {', '.join(fields) or 'nothing'}")
    if not isinstance(fields[name], str):
        raise BadDocument(f"'{name}' is not text but {type(fields[name]).__name__}")
    value: str = fields[name]
    return value
