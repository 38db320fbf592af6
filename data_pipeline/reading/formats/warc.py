"""WARC files of extracted text (.wet), as Common Crawl publishes them: one document in each `conversion` record.

Read here, not by a library: a record that was cut off, or that runs into the next, must be an error and not a shorter
text. Nothing is extracted, so what a record's address says is never the name of a file. Lines outside of texts end with
CR and LF, as the standard has it, or with LF alone, which other readers take too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.formats.decompress import read_blocks
from data_pipeline.reading.formats.txt import TOO_LONG
from data_pipeline.reading.malformed import RecordCounter

_HEADER_BYTES = 2**20  # of one record; longer is none
_LENGTH_DIGITS = 18
_BLANK_LINE, _BLANK_LINE_BYTES = re.compile(rb"\r?\n\r?\n"), 4


class _Damage(Exception):
    """Raised for damage that breaks the sequence of records."""


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(record from 0, text) of each `conversion` record (ISO 28500).

    A text that is not UTF-8 or too long is reported to `records` and skipped. Raises DataError where a record does not
    begin as it should, since the rest of the file is lost.
    """
    stream = _BlockReader(read_blocks(path))
    limit, index = config.max_document_bytes, 0
    while stream.more():
        where = f"record {index} (byte {stream.position})"
        try:
            fields = _header(stream)
            length = _length(fields)
            wanted = fields.get("warc-type", "").lower() == "conversion"
            body = stream.take(length, keep=wanted and length <= limit)
            stream.take_line_end()
            stream.take_line_end()
        except _Damage as error:
            raise DataError(f"{path}, {where}: {error}; fetch the file again.") from error
        if wanted:
            records.seen += 1
            if length > limit:
                records.malformed(index, where, f"longer than {limit} bytes", TOO_LONG)
            else:
                try:
                    text = body.decode("utf-8")
                except UnicodeDecodeError as error:
                    records.malformed(index, where, f"not UTF-8 ({error.reason})", "convert it to UTF-8 or remove it")
                else:
                    yield index, (text,)
        index += 1
    if index == 0:
        records.empty()


def _header(stream: _BlockReader) -> dict[str, str]:
    """The named fields of a record, their names in lower case."""
    lines = stream.header(_HEADER_BYTES).decode("utf-8", "replace").split("\n")
    if not lines[0].startswith("WARC/"):
        raise _Damage("no WARC record begins here")
    pairs = (line.partition(":") for line in lines[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(fields: dict[str, str]) -> int:
    digits = fields.get("content-length", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _LENGTH_DIGITS):
        raise _Damage("has no Content-Length")
    return int(digits)


class _BlockReader:
    """Reads bytes that arrive in blocks, in portions of any size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held, self._start = b"", 0  # what was taken of `_held` lies before `_start`
        self.position = 0
        """Bytes taken so far."""

    def more(self) -> bool:
        """Whether any bytes are left."""
        return self._start < len(self._held) or self._fill()

    def header(self, limit: int) -> bytes:
        """The bytes before a blank line, which is taken too. Raises _Damage when there are more than about `limit` of
        them."""
        searched = 0
        while (found := _BLANK_LINE.search(self._held, self._start + searched)) is None:
            searched = max(len(self._held) - self._start - _BLANK_LINE_BYTES + 1, 0)
            if searched > limit:
                raise _Damage("no WARC record begins here")
            if not self._fill():
                raise _Damage("was cut off")
        taken = self._take(found.start() - self._start)
        self._take(found.end() - found.start())
        return taken

    def take_line_end(self) -> None:
        """Takes LF, or CR and LF. Raises _Damage when something else comes next."""
        if (end := self.take(1)) == b"\r":
            end = self.take(1)
        if end != b"\n":
            raise _Damage("does not end where its Content-Length says")

    def take(self, size: int, keep: bool = True) -> bytes:
        """The next `size` bytes, or nothing when they aren't kept. Raises _Damage when there are less."""
        parts, left = [], size
        while left:
            if not self.more():
                raise _Damage("was cut off")
            part = self._take(left)
            left -= len(part)
            if keep:
                parts.append(part)
        return b"".join(parts)

    def _take(self, size: int) -> bytes:
        part = self._held[self._start : self._start + size]
        self._start += len(part)
        self.position += len(part)
        return part

    def _fill(self) -> bool:
        for piece in self._pieces:
            if piece:
                self._held, self._start = self._held[self._start :] + piece, 0
                return True
        return False
