"""Where the rows of a file of JSON lie: its lines, or the elements of the one array that it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from data_pipeline.common.relative import relative_note
from data_pipeline.errors import DataError

_SCAN_BYTES = 2**24
_LONGEST_BLANK = 8  # bytes of white space that a line may have and count as blank
_NEWLINE = 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = re.compile("[ \t\r\n]*")
_HEAD_BYTES = 2**12  # white space before an array


@dataclass(frozen=True)
class FileRows:
    """The rows of one file."""

    path: Path
    content: NDArray[np.uint8]
    """The file's bytes, mapped into memory."""
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """Numbers of the lines on which they begin, from 1."""


def find_rows(path: Path) -> FileRows:
    """The lines of a file but for blank ones, or the elements of its array. A byte order mark at its start is no part
    of it. Raises DataError if the file can't be read, is no array though it begins as one, or has no row."""
    try:
        if not path.is_file():
            raise DataError(
                f"{path} is missing{relative_note(path)}: labelled data is a directory with train.jsonl and "
                "validation.jsonl, one JSON object per line, or with train.json and validation.json, an array of "
                "objects each."
            )
        size = path.stat().st_size
        content = cast(NDArray[np.uint8], np.memmap(path, np.uint8, "r")) if size else np.empty(0, np.uint8)
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}); fix its permissions.") from error
    head = content[:_HEAD_BYTES].tobytes()
    begin = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    found = [at + np.flatnonzero(content[at : at + _SCAN_BYTES] == _NEWLINE) for at in range(0, size, _SCAN_BYTES)]
    newlines = np.concatenate([*found, np.empty(0, np.int64)]).astype(np.int64)
    if head[begin:].lstrip().startswith(b"["):
        return _elements(path, content, begin, newlines)
    ends = np.append(newlines, size)
    starts = np.append(begin, newlines + 1)
    filled = ends > starts
    for number in np.flatnonzero(filled & (ends - starts <= _LONGEST_BLANK)).tolist():
        filled[number] = bool(content[starts[number] : ends[number]].tobytes().strip())
    chosen = np.flatnonzero(filled)
    if not len(chosen):
        raise DataError(f"{path} has no row; give it one JSON object per line.")
    return FileRows(path, content, starts[chosen], ends[chosen], chosen + 1)


def _elements(path: Path, content: NDArray[np.uint8], begin: int, newlines: NDArray[np.int64]) -> FileRows:
    try:
        text = content[begin:].tobytes().decode("utf-8")
        spans = np.array(list(_spans(text)), np.int64).reshape(-1, 2)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} begins as a JSON array, and is none ({error}); repair it.") from None
    if not len(spans):
        raise DataError(f"{path} has no row; give its array one JSON object or more.")
    starts, ends = (begin + spans if text.isascii() else begin + _in_bytes(text, spans)).T
    return FileRows(path, content, starts, ends, np.searchsorted(newlines, starts) + 1)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The characters of each element of an array. Raises ValueError for what is none."""
    decoder, at = json.JSONDecoder(), _after_blanks(text, text.index("[") + 1)
    if text[at : at + 1] == "]":
        return
    while True:
        _, end = decoder.raw_decode(text, at)
        yield at, end
        at = _after_blanks(text, end)
        if text[at : at + 1] == "]":
            break
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        at = _after_blanks(text, at + 1)
    if _after_blanks(text, at + 1) != len(text):
        raise json.JSONDecodeError("Extra data", text, at + 1)


def _after_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return at if blanks is None else blanks.end()


def _in_bytes(text: str, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of characters as positions of bytes in UTF-8."""
    flat = spans.ravel()
    sizes = [len(text[a:b].encode()) for a, b in zip([0, *flat[:-1].tolist()], flat.tolist(), strict=True)]
    return np.cumsum(sizes, dtype=np.int64).reshape(-1, 2)
