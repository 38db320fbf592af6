"""Input files -> chunks of one task each: several small files, or a piece of a large or compressed one.

Documents keep the order of the files, so decisions that depend on their order don't depend on the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.document_files import SUFFIX, save_documents
from data_pipeline.build.inputs import InputFile, InputSource
from data_pipeline.common.tasks import BuildTask
from data_pipeline.reading.documents import Document
from data_pipeline.reading.malformed import MalformedRecords
from data_pipeline.reading.readers import packed, read_documents

_PIECES, _LEAST_PIECE_BYTES, _MOST_PIECE_BYTES = 64, 2**20, 2**25
_DOCUMENT_BYTES = 256  # overhead of a document in memory, besides its text
_UNPACKED = 4  # assumed compression ratio
_MOST_FILES = 2**14  # per chunk
RunTasks = Callable[[str, list[BuildTask]], list[Any]]
"""Runs a stage's tasks: (its name, also that of its folder; the tasks) -> their results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChunk:
    """Documents that one task works on, of one source, from validation files only or from none."""

    number: int
    source: str
    validation: bool
    """Whether its files are validation files."""
    files: tuple[InputFile, ...]
    """Consecutive files that its documents come from."""
    first_file: int
    """Index of the first of them among all input files."""
    piece: str | None
    """Name of the piece that the first pass reads; None: the files themselves."""
    bytes: int
    bad: dict[str, Any] | None
    """Malformed records of all its files (MalformedRecords.to_dict), in the first piece of them; else None."""


def split_into_chunks(config: BuildConfig, sources: list[InputSource], folder: Path, run: RunTasks) -> list[InputChunk]:
    """The chunks of all sources, in order: groups of small files, or pieces of large and compressed ones."""
    limit = chunk_bytes(config, sources)
    runs = list(_runs(sources, limit))
    reading = [number for number, run_ in enumerate(runs) if _is_to_be_cut(run_.files, limit)]
    tasks = [
        BuildTask(
            f"{number:06d}",
            partial(_cut, config, runs[number].files, limit, chunk_folder(folder) / f"{number:06d}"),
            sum(file.state[0] for file in runs[number].files),
        )
        for number in reading
    ]
    pieces = dict(zip(reading, run("reading", tasks), strict=True)) if tasks else {}
    chunks: list[InputChunk] = []

    def add(of: _Run, piece: str | None, size: int, bad: dict[str, Any] | None) -> None:
        source, validation, first, files = of
        chunk = InputChunk(
            number=len(chunks),
            source=source,
            validation=validation,
            files=files,
            first_file=first,
            piece=piece,
            bytes=size,
            bad=bad,
        )
        chunks.append(chunk)

    for number, of in enumerate(runs):
        if number not in pieces:
            add(of, None, sum(file.state[0] for file in of.files), None)
            continue
        for index, (name, size) in enumerate(pieces[number]["pieces"]):
            add(of, name, size, None if index else pieces[number]["bad"])
    return chunks


def chunk_folder(folder: Path) -> Path:
    """The folder of the input's pieces."""
    return folder / "reading"


class _Run(NamedTuple):
    """Consecutive files of one source, all validation files or none."""

    source: str
    validation: bool
    first: int
    files: tuple[InputFile, ...]


def _runs(sources: list[InputSource], limit: int) -> Iterator[_Run]:
    """Groups of files, small ones together until they have the bytes of a chunk."""
    first = 0
    for source in sources:
        held: list[InputFile] = []
        size = 0
        for file in source.inputs:
            bytes_ = file.state[0] * (_UNPACKED if packed(file.path) else 1)
            if held and (size + bytes_ > limit or held[0].validation != file.validation or len(held) == _MOST_FILES):
                yield _Run(source.name, held[0].validation, first, tuple(held))
                first, held, size = first + len(held), [], 0
            held.append(file)
            size += bytes_
        yield _Run(source.name, held[0].validation, first, tuple(held))
        first += len(held)


def _is_to_be_cut(files: Sequence[InputFile], limit: int) -> bool:
    return files[0].state[0] > limit or any(packed(file.path) for file in files)


def chunk_bytes(config: BuildConfig, sources: list[InputSource]) -> int:
    """Bytes per chunk; larger files are split into pieces of this size."""
    if config.piece_bytes is not None:
        return config.piece_bytes
    return default_chunk_bytes(sum(file.state[0] for source in sources for file in source.inputs))


def default_chunk_bytes(input_bytes: int) -> int:
    """Bytes per chunk, unless the config sets them."""
    return min(max(input_bytes // _PIECES, _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)


def read_input_files(files: Sequence[InputFile], config: BuildConfig, bad: MalformedRecords) -> Iterator[Document]:
    """The documents of files, in order."""
    for file in files:
        yield from read_documents(file.path, config, file.name, bad)


def _cut(config: BuildConfig, files: Sequence[InputFile], limit: int, prefix: Path) -> dict[str, Any]:
    """Task: writes the documents of files as pieces; returns (name, bytes of text) of each, and the malformed
    records."""
    bad = MalformedRecords()
    documents = read_input_files(files, config, bad)
    pieces: list[tuple[str, int]] = []
    size = limit
    while size >= limit:
        size = 0

        def piece() -> Iterator[Document]:
            nonlocal size
            while size < limit and (document := next(documents, None)) is not None:
                size += len(document.utf8) + _DOCUMENT_BYTES
                yield document

        path = prefix.with_name(f"{prefix.name}-{len(pieces):06d}{SUFFIX}")
        save_documents(path, piece())
        pieces.append((path.name, size))
    for file in files:
        file.check_unchanged()
    return {"pieces": pieces, "bad": bad.to_dict()}
