"""Lines of text, and the documents of a .txt file that are made of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_pipeline.config import ReadingConfig
from data_pipeline.reading.formats.decompress import read_blocks
from data_pipeline.reading.malformed import RecordCounter

_SKIPPED_BYTES = 2**17
TOO_LONG = "raise max_document_bytes, or cut it"


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(index, text) of each document of a .txt file, by `txt_documents`. Raises DataError as `read_lines` does."""
    limit = config.max_document_bytes
    numbered = read_lines(path, limit, records)
    documents: Iterator[tuple[int, str]]
    if config.txt_documents == "line":
        documents = ((index, line.strip("\r\n")) for index, line in numbered)
    elif config.txt_documents == "passages":
        documents = enumerate(_passages(numbered, config.txt_passage_characters))
    else:
        documents = _runs(numbered, config.txt_documents == "file", limit, records)
    for index, document in documents:
        yield index, (document,)


def read_lines(path: Path, limit: int, records: RecordCounter) -> Iterator[tuple[int, str]]:
    """(number from 0, line with its original end); malformed lines are reported to `records` and skipped.

    A line is malformed when it is not UTF-8, or longer than `limit` bytes. A byte order mark at the start is dropped.
    Most of hundreds of thousands of consecutive empty lines are counted but not yielded. Raises DataError for a file
    that can't be read.
    """
    for index, offset, line in _raw_lines(read_blocks(path), limit):
        records.seen = index + 1
        if line is None:
            records.malformed(index, f"line {index + 1} (byte {offset})", f"longer than {limit} bytes", TOO_LONG)
            continue
        try:
            text = line.decode("utf-8" if index else "utf-8-sig")
        except UnicodeDecodeError as error:
            where = f"line {index + 1} (byte {offset + error.start})"
            records.malformed(index, where, f"not UTF-8 ({error.reason})", "convert the file to UTF-8")
            continue
        yield index, text
    if not records.seen:
        records.empty()


def _raw_lines(pieces: Iterator[bytes], limit: int) -> Iterator[tuple[int, int, bytes | None]]:
    """(number, byte offset, line with its end) for each line; None, as soon as that is known, for one of more bytes
    than `limit`. Pieces of nothing but line ends are skipped: a megabyte of gzip may hold a thousand of them."""
    number, offset, size, parts, reported = 0, 0, 0, [b""], False  # of the line that is being read
    for piece in pieces:
        if not size and len(piece) >= _SKIPPED_BYTES and piece.count(b"\n") == len(piece):
            number, offset = number + len(piece), offset + len(piece)
            continue
        *ended, last = piece.split(b"\n")
        for part in ended:
            size += len(part) + 1
            if size <= limit:
                yield number, offset, b"".join([*parts, part, b"\n"])
            elif not reported:
                yield number, offset, None
            number, offset, size, parts, reported = number + 1, offset + size, 0, [], False
        parts.append(last)
        size += len(last)
        if size > limit:
            parts = []
            if not reported:
                yield number, offset, None
            reported = True
    if size and not reported:
        yield number, offset, b"".join(parts)


def _runs(
    lines: Iterable[tuple[int, str]], one_document: bool, limit: int, records: RecordCounter
) -> Iterator[tuple[int, str]]:
    """(number, paragraph) for runs of lines that blank ones end, or all lines as they are (`whole`).

    One of more than `limit` bytes is reported to `records` and skipped.
    """
    buffer = io.StringIO(newline="")  # not a list: a file of nothing but line ends would be eight times as large in it
    index, size, blank = 0, 0, False
    for _, line in lines:
        was_blank, blank = blank, not line.strip()
        if was_blank and not blank and not one_document:
            if size <= limit:
                yield index, buffer.getvalue().strip("\r\n")
            buffer, index, size = io.StringIO(newline=""), index + 1, 0
        was, size = size, size + len(line.encode())
        if size <= limit:
            buffer.write(line)
        elif was <= limit:
            what = "the file" if one_document else f"paragraph {index + 1}"
            records.malformed(index, what, f"longer than {limit} bytes", f"{TOO_LONG}, or set txt_documents=passages")
            buffer = io.StringIO(newline="")
    if size <= limit:
        yield index, buffer.getvalue() if one_document else buffer.getvalue().strip("\r\n")


def _passages(lines: Iterable[tuple[int, str]], least: int) -> Iterator[str]:
    """Runs of lines, each ended by the first blank lines after `least` characters.

    Text without blank lines is cut at a line end after 2 * `least` instead, and within a line or among blank lines
    after 8 * `least`. Put together, the passages are the text.
    """
    buffer: list[str] = []
    size, blank = 0, False
    for _, line in lines:
        was_blank, blank = blank, not line.strip()
        if buffer and (size >= 8 * least or (not blank and (size >= 2 * least or (size >= least and was_blank)))):
            yield "".join(buffer)
            buffer, size = [], 0
        start = 0
        while len(line) - start > 8 * least:
            yield "".join(buffer) + line[start : start + 8 * least]
            buffer, size, start = [], 0, start + 8 * least
        line = line[start:]
        buffer.append(line)
        size += len(line)
    if buffer:
        yield "".join(buffer)
