"""Parquet: one document in each row, the text in the column `text_field`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.formats.txt import TOO_LONG
from data_pipeline.reading.malformed import RecordCounter

_BATCH_ROWS = 256
_BUFFER_BYTES = 2**18  # of the file at a time: a row group of any size is read page by page
_PAGE_BYTES = 2**20  # what a chunk may hold besides its values
_METADATA_BYTES = 2**26  # most that a name, or the list of row groups, may take
_BATCH_VALUES = 4  # of `max_document_bytes` each, that a batch may hold of a column whose values share bytes
_TEXT_TYPES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)
_NOT_IMPLEMENTED = re.compile(r"not (yet )?(implemented|supported)|unsupported|encrypt", re.IGNORECASE)


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(row from 0, texts of the columns `text_field` or `pair_fields`), a few rows in memory at a time.

    A row without text, with bytes that are not UTF-8, or too long is reported to `records` and skipped. Raises
    DataError for a file that is damaged or has no such columns of strings or their bytes, and for row groups whose
    values are too long on average.
    """
    fields = config.pair_fields or (config.text_field,)
    row = 0
    for row, values in enumerate(_rows(path, fields, config.max_document_bytes)):
        records.seen += 1
        texts: list[str] = []
        for field, value in zip(fields, values, strict=True):
            where = f"row {row}"
            if value is None:
                records.malformed(row, where, f"field {field!r} is null", "repair or remove that row")
            elif len(value) > config.max_document_bytes:
                records.malformed(row, where, f"longer than {config.max_document_bytes} bytes", TOO_LONG)
            else:
                try:
                    texts.append(value.decode("utf-8"))
                    continue
                except UnicodeDecodeError as error:
                    records.malformed(row, where, f"not UTF-8 ({error.reason})", "repair or remove that row")
            break
        else:
            yield row, tuple(texts)


def _rows(path: Path, fields: tuple[str, ...], limit: int) -> Iterator[tuple[bytes | None, ...]]:
    """The bytes of the columns of each row."""
    options: dict[str, Any] = {
        "thrift_string_size_limit": _METADATA_BYTES,
        "thrift_container_size_limit": _METADATA_BYTES // 64,
        "buffer_size": _BUFFER_BYTES,
        "page_checksum_verification": True,
    }
    try:
        with pq.ParquetFile(path, **options) as file:
            _check(path, file, fields, limit)
            metadata = file.metadata
        dictionaries, rows = _reading(metadata, fields, limit)
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=dictionaries, **options) as file:
            for batch in file.iter_batches(rows, columns=list(fields), use_threads=False):
                yield from zip(*(_values(batch.column(field)) for field in fields), strict=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split())
        if _NOT_IMPLEMENTED.search(reason):
            raise DataError(
                f"{path} can't be read ({reason}); write it again with pyarrow's defaults, without encryption."
            ) from error
        raise DataError(f"{path} is no whole Parquet file ({reason}); fetch or write it again.") from error


def _check(path: Path, file: Any, fields: tuple[str, ...], limit: int) -> None:
    schema, metadata = file.schema_arrow, file.metadata
    for field in fields:
        if schema.names.count(field) != 1:
            raise DataError(
                f"{path}: has no column {field!r}; name the text's in text_field, or a pair's in pair_fields."
            )
        kind = schema.field(field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_text(kind) for is_text in _TEXT_TYPES):
            raise DataError(f"{path}: column {field!r} is {kind}, but must be of strings, or of their bytes.")
    for field in fields:
        for group, chunk in _chunks(metadata, field):
            if chunk.total_uncompressed_size > chunk.num_values * limit + _PAGE_BYTES:
                raise DataError(f"{path}, row group {group}: values of more than {limit} bytes on average; {TOO_LONG}.")


def _chunks(metadata: Any, field: str) -> Iterator[tuple[int, Any]]:
    """(row group, what the metadata say of the column in it)."""
    columns = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == field]
    for group in range(metadata.num_row_groups):
        yield from ((group, metadata.row_group(group).column(index)) for index in columns)


def _reading(metadata: Any, fields: tuple[str, ...], limit: int) -> tuple[list[str], int]:
    """(columns to be read as dictionaries, rows of a batch).

    As a dictionary, a value that many rows share stays one; but Arrow can't read encodings of differences so. With
    these, each row of a batch may have a value of as many bytes as the row group has.
    """
    dictionaries, rows = [], _BATCH_ROWS
    for field in fields:
        chunks = [chunk for _, chunk in _chunks(metadata, field)]
        if any(encoding.startswith("DELTA") for chunk in chunks for encoding in chunk.encodings):
            largest = max(chunk.total_uncompressed_size for chunk in chunks)
            rows = min(rows, max(1, _BATCH_VALUES * limit // max(1, largest)))
        else:
            dictionaries.append(field)
    return dictionaries, rows


def _values(column: Any) -> Iterator[bytes | None]:
    """Bytes, not strings: whether they are UTF-8 is judged row by row."""
    if pa.types.is_dictionary(column.type):
        used = column.indices.unique().drop_null()  # few of a dictionary that a row group shares
        values = column.dictionary.take(used).cast(pa.large_binary()).to_pylist()
        entries = dict(zip(used.to_pylist(), values, strict=True))
        for index in column.indices.to_pylist():
            yield None if index is None else entries[index]
    else:
        yield from column.cast(pa.large_binary()).to_pylist()
