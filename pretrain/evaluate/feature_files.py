"""Files of features, written piece by piece in the order of the texts: safetensors and parquet.

| safetensors | parquet column | Holds |
|---|---|---|
| `lines` [texts] | `line` | number of each text's line |
| `vectors` [texts or tokens, ...] | `vector`, or `vectors` of tokens | vectors, float32 |
| `offsets` [texts + 1] | | text i has the tokens from offsets[i] to offsets[i + 1] |
| `token_ids`, `special` [tokens] | `token_ids`, `special` | id of each token, and whether it is a special one |

The last two rows exist for vectors of tokens only. What the vectors were made of is metadata of the file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_TYPES = {np.dtype(np.int64): "I64", np.dtype(np.int32): "I32", np.dtype(np.bool_): "BOOL"}


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """Tokens of all texts, one text after the other."""

    offsets: NDArray[np.int64]
    """[texts + 1] where the tokens of each text begin"""
    token_ids: NDArray[np.int32]
    special: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class FeatureTable:
    """Everything about a file of features but the vectors."""

    lines: NDArray[np.int64]
    vector_shape: tuple[int, ...]
    metadata: Mapping[str, str]
    tokens: TokenColumns | None
    """None: each text has one vector"""

    @property
    def vectors(self) -> int:
        """Number of vectors."""
        return len(self.lines) if self.tokens is None else len(self.tokens.token_ids)


class FeatureWriter(Protocol):
    """A file that is being written."""

    def write(self, texts: slice, vectors: NDArray[np.float32]) -> None:
        """Adds the vectors of the next `texts`."""

    def close(self) -> None:
        """Writes what is left."""


class SafetensorsWriter:
    """See `FeatureWriter`. The header, which needs nothing but shapes, comes first."""

    def __init__(self, path: Path, table: FeatureTable) -> None:
        before = {"lines": table.lines}
        after: dict[str, NDArray[Any]] = {}
        if table.tokens is not None:
            before["offsets"] = table.tokens.offsets
            after = {"token_ids": table.tokens.token_ids, "special": table.tokens.special}
        self._after = after
        entries: dict[str, Any] = {"__metadata__": dict(table.metadata)}
        begin = 0
        shape = (table.vectors, *table.vector_shape)
        for name, kind, dimensions, size in (
            *((name, _TYPES[values.dtype], values.shape, values.nbytes) for name, values in before.items()),
            ("vectors", "F32", shape, 4 * int(np.prod(shape))),
            *((name, _TYPES[values.dtype], values.shape, values.nbytes) for name, values in after.items()),
        ):
            entries[name] = {"dtype": kind, "shape": dimensions, "data_offsets": (begin, begin + size)}
            begin += size
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)  # so that the values are aligned
        self._file = path.open("wb")
        self._file.write(len(header).to_bytes(8, "little") + header)
        for values in before.values():
            self._file.write(_little_endian(values))

    def write(self, texts: slice, vectors: NDArray[np.float32]) -> None:
        """See `FeatureWriter`."""
        self._file.write(_little_endian(vectors))

    def close(self) -> None:
        """See `FeatureWriter`."""
        for values in self._after.values():
            self._file.write(_little_endian(values))
        self._file.close()


class ParquetWriter:
    """See `FeatureWriter`. Each call of `write` makes a row group."""

    def __init__(self, path: Path, table: FeatureTable) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self._table, vector = table, pa.float32()
        for size in reversed(table.vector_shape):
            vector = pa.list_(vector, size)
        fields = [("line", pa.int64())]
        if table.tokens is None:
            fields += [("vector", vector)]
        else:
            fields += [
                ("token_ids", pa.list_(pa.int32())),
                ("special", pa.list_(pa.bool_())),
                ("vectors", pa.list_(vector)),
            ]
        self._schema = pa.schema(fields, metadata=dict(table.metadata))
        self._writer = parquet.ParquetWriter(path, self._schema)

    def write(self, texts: slice, vectors: NDArray[np.float32]) -> None:
        """See `FeatureWriter`."""
        import pyarrow as pa

        nested = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        for size in reversed(self._table.vector_shape):
            nested = pa.FixedSizeListArray.from_arrays(nested, size)
        columns = [pa.array(self._table.lines[texts])]
        if (tokens := self._table.tokens) is None:
            columns += [nested]
        else:
            offsets = tokens.offsets[texts.start : texts.stop + 1]
            span, own = slice(offsets[0], offsets[-1]), pa.array((offsets - offsets[0]).astype(np.int32))
            for values in (pa.array(tokens.token_ids[span]), pa.array(tokens.special[span]), nested):
                columns += [pa.ListArray.from_arrays(own, values)]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """See `FeatureWriter`."""
        self._writer.close()


WRITERS: dict[str, type[SafetensorsWriter] | type[ParquetWriter]] = {
    ".safetensors": SafetensorsWriter,
    ".parquet": ParquetWriter,
}
"""Writers by the suffix of the file."""


def _little_endian(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
