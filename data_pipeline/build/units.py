"""Input files -> units, that one task each works on: the files themselves, or pieces of large and compressed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import Input, InputSource
from data_pipeline.build.pieces import SUFFIX, write_piece
from data_pipeline.common.work import BuildTask
from data_pipeline.reading.bad_input import BadInput
from data_pipeline.reading.documents import Document
from data_pipeline.reading.readers import packed, read_documents

_PIECES, _LEAST_PIECE_BYTES, _MOST_PIECE_BYTES = 64, 2**20, 2**25
_DOCUMENT_BYTES = 256  # that each counts besides its text, as it does in memory
RunTasks = Callable[[str, list[BuildTask]], list[Any]]
"""Does a stage's tasks: (its name, which is that of its folder too; the tasks) -> their results."""


@dataclass(frozen=True)
class InputChunk:
    """A unit: documents that one task works on, all of one input file."""

    number: int
    source: str
    file: Input
    path: Path
    """What the first pass reads: the file itself, or a piece of it."""
    bytes: int
    bad: dict[str, Any] | None
    """Of the first piece of a file: what was malformed in all of it, as BadInput.to_dict."""


def cut(config: BuildConfig, sources: list[InputSource], folder: Path, run: RunTasks) -> list[InputChunk]:
    """The units of all sources, in their order: files, or pieces of large ones."""
    files = [(source, file) for source in sources for file in source.inputs]
    limit = piece_bytes(config, sources)
    large = [(number, file) for number, (_, file) in enumerate(files) if file.state[0] > limit or packed(file.path)]
    tasks = [
        BuildTask(
            f"{number:06d}", partial(_cut, config, file, limit, folder / "reading" / f"{number:06d}"), file.state[0]
        )
        for number, file in large
    ]
    pieces = dict(zip((number for number, _ in large), run("reading", tasks), strict=True)) if tasks else {}
    found: list[InputChunk] = []
    for number, (source, file) in enumerate(files):
        if number not in pieces:
            found.append(InputChunk(len(found), source.name, file, file.path, file.state[0], None))
            continue
        for index, (name, size) in enumerate(pieces[number]["pieces"]):
            bad = None if index else pieces[number]["bad"]
            found.append(InputChunk(len(found), source.name, file, folder / "reading" / name, size, bad))
    return found


def piece_bytes(config: BuildConfig, sources: list[InputSource]) -> int:
    """Larger files are cut into pieces of this size."""
    if config.piece_bytes is not None:
        return config.piece_bytes
    whole = sum(file.state[0] for source in sources for file in source.inputs)
    return min(max(whole // _PIECES, _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)


def _cut(config: BuildConfig, file: Input, limit: int, prefix: Path) -> dict[str, Any]:
    """Writes a file's documents as pieces; returns (name, bytes of text) of each, and what was malformed."""
    bad = BadInput()
    documents = read_documents(file.path, config, file.name, bad)
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
        write_piece(path, piece())
        pieces.append((path.name, size))
    file.check_unchanged()
    return {"pieces": pieces, "bad": bad.to_dict()}
