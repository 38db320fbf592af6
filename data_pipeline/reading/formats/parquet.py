"""Parquet: one document in each row, the text in the column `text_field`."""

from __future__ import annotations

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


def read(path: Path, config: ReadingConfig, records: RecordCounter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(row from 0, texts of the columns `text_field` or `pair_fields`), a few rows in memory at a time.

    A row without text, with bytes that are not UTF-8, or too long is reported to `records` and skipped. Raises
    DataError for a file that is damaged or has no such string columns, and for row groups whose values are too long on
    average.
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
        # As a dictionary, a value that many rows share stays one.
        with pq.ParquetFile(path, metadata=metadata, read_dictionary=list(fields), **options) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(fields), use_threads=False):
                yield from zip(*(_values(batch.column(field)) for field in fields), strict=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split())
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
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"{path}: column {field!r} is {kind}, but must be of strings.")
    columns = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path in fields]
    for group in range(metadata.num_row_groups):
        for chunk in (metadata.row_group(group).column(index) for index in columns):
            if chunk.total_uncompressed_size > chunk.num_values * limit + _PAGE_BYTES:
                raise DataError(f"{path}, row group {group}: values of more than {limit} bytes on average; {TOO_LONG}.")


def _values(column: Any) -> Iterator[bytes | None]:
    """Bytes, not strings: whether they are UTF-8 is judged row by row."""
    if pa.types.is_dictionary(column.type):
        entries = column.dictionary.cast(pa.large_binary()).to_pylist()
        for index in column.indices.to_pylist():
            yield None if index is None else entries[index]
    else:
        yield from column.cast(pa.large_binary()).to_pylist()
