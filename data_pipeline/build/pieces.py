"""Documents on their way through a build, as files: one line of JSON each, compressed by zstd.

A line is [index, part, text ...]; all documents of a file come from one input file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

from data_pipeline.common.atomic import written
from data_pipeline.reading.documents import Document

SUFFIX = ".docs.zst"
_LEVEL = 1  # fast: these files live for minutes


def write_piece(path: Path, documents: Iterable[Document]) -> None:
    """Writes all of `documents`; the file appears once it is whole."""
    with (
        written(path) as scratch,
        scratch.open("wb") as raw,
        zstandard.ZstdCompressor(_LEVEL).stream_writer(raw) as file,
    ):
        for document in documents:
            line = json.dumps([document.index, document.part, *document.texts], ensure_ascii=False)
            file.write(line.encode() + b"\n")


def read_piece(path: Path, name: str) -> Iterator[Document]:
    """The documents of a file that `write_piece` wrote, which come from the input file `name`."""
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        for line in io.TextIOWrapper(stream, "utf-8", newline="\n"):
            index, part, *texts = json.loads(line)
            yield Document(tuple(texts), name, index, part)
