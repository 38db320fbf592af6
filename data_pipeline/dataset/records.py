"""The JSON files of a dataset: validated strictly, protected by a checksum, and limited in size."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from data_pipeline.common.hashing import digest_of
from data_pipeline.common.problems import problem_text
from data_pipeline.common.relative import relative_note
from data_pipeline.errors import DataError

FORMAT: Literal[1] = 1
_CHECKSUM = "checksum"
LIMIT_BYTES = 2**28
"""Largest manifest. Most of a large one lists input files, of about 100 bytes each, since many members of shards are in
a file of their own."""

_NAME_ONE = "name a directory that `pretrain data build` wrote, or build it again."


def plain_name(name: str) -> str:
    """Returns the name if it can be a file in the dataset's own directory. Raises ValueError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", name):
        raise ValueError("the name of a file in the dataset's directory has to be letters, digits and ._- only")
    return name


Name = Annotated[str, AfterValidator(plain_name)]
"""Name of a file in the dataset's own directory."""


class StrictRecord(BaseModel):
    """Base of all records in a dataset's JSON files."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Record = TypeVar("Record", bound=BaseModel)


def save_record(values: dict[str, Any], path: Path) -> None:
    """Writes a record's values and their checksum; the same content gives the same bytes."""
    values = json.loads(json.dumps(values))  # as they will be read
    values[_CHECKSUM] = digest_of(values)
    content = json.dumps(values, indent=1, sort_keys=True) + "\n"
    if len(content) > LIMIT_BYTES:
        raise DataError(f"{path} would have more than {LIMIT_BYTES:,} bytes; build from fewer and larger input files.")
    path.write_text(content)


def record_bytes(path: Path) -> bytes:
    """The contents of a record's file. Raises DataError when it is missing or too large."""
    try:
        if path.exists() and not path.is_file():  # a pipe would keep us waiting
            raise DataError(f"{path} is not a file; {_NAME_ONE}")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > LIMIT_BYTES:
                raise _too_large(str(path))
            return file.read(size)
    except FileNotFoundError as error:
        there = path.parent.exists()
        lack = f"has no {path.name}" if there else f"does not exist{relative_note(path.parent)}"
        raise DataError(f"{path.parent} {lack}; {_NAME_ONE}") from error
    except NotADirectoryError as error:
        raise DataError(f"{path.parent} is a file, and a dataset is a directory; {_NAME_ONE}") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file has
        raise DataError(f"{path} can't be read ({error}); repair that, or {_NAME_ONE}") from error


def parse_record(
    kind: type[Record],
    content: bytes,
    path: str,
    formats: tuple[int, ...] = (FORMAT,),
    complete: Callable[[dict[str, Any]], None] = lambda values: None,
) -> tuple[Record, bool]:
    """(the record, whether its checksum is right). `complete` adds values that are stored elsewhere. Raises DataError
    when `content` is not a record of these formats."""
    if len(content) > LIMIT_BYTES:
        raise _too_large(path)
    try:
        values = json.loads(content)
        # The checksum covers all other values; older manifests have none.
        checksum = values.pop(_CHECKSUM, None) if isinstance(values, dict) else None
        actual = digest_of(values)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no dataset's manifest ({error}); {_NAME_ONE}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} is no manifest but a JSON {type(values).__name__}; {_NAME_ONE}")
    version = values.get("format")
    if isinstance(version, bool) or version not in formats:
        known = str(version)[:20] if isinstance(version, int) else "unknown"
        raise DataError(
            f"{path} is of format {known}, this program reads {' and '.join(map(str, formats))}; {_NAME_ONE}"
        )
    complete(values)
    try:
        return kind.model_validate(values), checksum in (None, actual)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the top"
        raise DataError(f"{path} is damaged at {where} ({problem_text(first)}); build it again.") from error


def has_right_checksum(content: bytes) -> bool:
    """Whether the bytes of a record hold the checksum of its values; False also where there is none to compare with."""
    try:
        values = json.loads(content)
        return isinstance(values, dict) and values.pop(_CHECKSUM, None) == digest_of(values)
    except (ValueError, RecursionError):
        return False


def _too_large(path: str) -> DataError:
    return DataError(f"{path} has more than the {LIMIT_BYTES:,} bytes of the largest manifest; build it again.")
