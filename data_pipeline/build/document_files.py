"""Documents on their way through a build, as files: one line of JSON each, compressed by zstd.

A line is [input file, index, part, text ...].
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

from data_pipeline.common.atomic import atomic_path
from data_pipeline.reading.documents import Document

SUFFIX = ".docs.zst"
_LEVEL = 1  # fast: these files live for minutes


def save_documents(path: Path, documents: Iterable[Document]) -> None:
    """Writes all of `documents`; the file appears once it is whole."""
    with (
        atomic_path(path) as scratch,
        scratch.open("wb") as raw,
        zstandard.ZstdCompressor(_LEVEL).stream_writer(raw) as file,
    ):
        for document in documents:
            name = json.dumps(document.file)  # in ASCII: it may hold bytes that are no UTF-8
            line = json.dumps([document.index, document.part, *document.texts], ensure_ascii=False)
            file.write(f"[{name}, {line[1:]}\n".encode())


def load_documents(path: Path) -> Iterator[Document]:
    """The documents of a file that `save_documents` wrote."""
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        for line in io.TextIOWrapper(stream, "utf-8", newline="\n"):
            file, index, part, *texts = json.loads(line)
            yield Document(tuple(texts), file, index, part)
