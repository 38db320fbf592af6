"""JSON lines: one object in each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.formats.txt import read_lines
from data_pipeline.reading.malformed import MalformedRecords, RecordCounter


class BadText(Exception):
    """Raised for a field without text, with the `reason` and the `advice` for the user."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.reason, self.advice = reason, advice


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line from 0, texts under `text_field` or `pair_fields`). Malformed lines are reported to `records` and skipped.

    Raises DataError for a file that can't be read.
    """
    fields = config.pair_fields or (config.text_field,)
    for index, line in read_lines(path, config.max_document_bytes, records):
        if line.strip():
            try:
                texts = _texts(line, fields)
            except BadText as error:
                records.malformed(index, f"line {index + 1}", error.reason, error.advice)
            else:
                yield index, texts


def values(path: Path) -> Iterator[tuple[int, Any]]:
    """(line from 1, what it holds) of each line that is not blank. Raises DataError for one that can't be read."""
    records = RecordCounter(path, str(path), 0, MalformedRecords())
    for index, line in read_lines(path, ReadingConfig().max_document_bytes, records):
        if line.strip():
            try:
                yield index + 1, _parsed(line)
            except BadText as error:
                raise DataError(f"{path}, line {index + 1}: {error.reason}; {error.advice}.") from error
    if not records.seen:
        raise DataError(f"{path} is empty; fetch it again.")


def _texts(line: str, fields: tuple[str, ...]) -> tuple[str, ...]:
    record = _parsed(line)
    return tuple(_text(record, field) for field in fields)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits
        raise BadText(f"not JSON ({error})", "repair or remove that line") from error


def _text(record: Any, field: str) -> str:
    if not isinstance(record, dict) or field not in record:
        raise BadText(f"has no field {field!r}", "name the text's in text_field, or a pair's in pair_fields")
    text = record[field]
    if not isinstance(text, str):
        raise BadText(f"field {field!r} is {type(text).__name__}, but must be a string", "repair or remove that line")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadText(
            f"field {field!r} holds half a character ({error.reason})", "repair or remove that line"
        ) from error
    return text
