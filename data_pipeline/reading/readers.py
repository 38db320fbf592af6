"""Files -> documents: the reader of each format, compressed or not.

A new format is one file in `formats/` and one row here, or a function of another package (`pretrain.formats`). Anything
unreadable is an error that names the file and the position, unless `max_bad_fraction` allows skipping a few malformed
records; only a wiki dump may end early. Nothing is extracted to disk, so names inside archives have no effect.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from data_pipeline.common.plugins import Registry
from data_pipeline.config import ReadingConfig
from data_pipeline.errors import DataError
from data_pipeline.reading.documents import Document
from data_pipeline.reading.formats import jsonl, mediawiki, parquet, txt, warc
from data_pipeline.reading.formats.decompress import DECOMPRESSORS
from data_pipeline.reading.malformed import MalformedRecords, RecordCounter

_Read = Callable[[Path, ReadingConfig, RecordCounter], Iterator[tuple[int, tuple[str, ...]]]]
FORMATS: Registry[_Read] = Registry(
    "pretrain.formats",
    {
        ".txt": txt.read,
        ".jsonl": jsonl.read,
        ".xml": mediawiki.read,
        ".parquet": parquet.read,
        ".wet": warc.read,
    },
    Callable,  # type: ignore[arg-type]  # isinstance accepts it
)
"""Reader of a file by its suffix: yields (position, texts) of each document in order."""
_VERSIONS = {".xml": mediawiki.VERSION}
"""Versions of readers that give other documents than their first version did."""
_log = logging.getLogger(__name__)
_COMPRESSES_ITSELF = (".parquet",)
_HAS_FIELDS = (".jsonl", ".parquet")


def find_inputs(patterns: str | list[str]) -> list[Path]:
    """The files that match `patterns`, sorted, without duplicates; a directory matches all readable files below it.

    Raises DataError when a pattern matches nothing, or names a file of an unknown kind.
    """
    readable: dict[Path, str] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            paths = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
            files = [(name, _kind(name)) for name in paths if os.path.isfile(name)]
            matches = {Path(name): kind for name, kind in files if kind}
            if unknown := sorted(name for name, kind in files if not kind):
                _log.warning("Skipping %d files of unknown kinds in %s, such as %s.", len(unknown), path, unknown[0])
        else:
            # An existing file whose name contains [ or * is not a pattern.
            names = [str(path)] if path.is_file() else glob.glob(str(path), recursive=True)
            matches = {Path(name): _kind(name) or "" for name in names if os.path.isfile(name)}
        if not matches:
            raise DataError(f"no file matches input {pattern!r}: give a {_kinds()} file, directory or glob")
        readable |= matches
    for path, kind in readable.items():
        if not kind:
            raise DataError(
                f"{path} is of no known kind; input is {_kinds()}, all but .parquet also as {', '.join(DECOMPRESSORS)}."
            )
    return sorted(readable, key=_path_parts)


def read_documents(
    path: Path, config: ReadingConfig, name: str | None = None, bad: MalformedRecords | None = None
) -> Iterator[Document]:
    """The documents of one file, in order; `name` is the file's name in them (default: the path).

    `bad` counts malformed records, which are skipped. Raises DataError naming the file and the line, record, row or
    byte that can't be read, and when more than `config.max_bad_fraction` are malformed.
    """
    kind = _kind(path)
    assert kind, path
    if config.pair_fields and kind not in _HAS_FIELDS:
        raise DataError(f"{path} holds no pairs; with pair_fields, give {' and '.join(_HAS_FIELDS)} files only.")
    name = name or str(path)
    records = RecordCounter(path, name, config.max_bad_fraction, MalformedRecords() if bad is None else bad)
    for index, texts in FORMATS[kind](path, config, records):
        if all(text.strip() for text in texts):
            yield Document(texts, name, index)
    records.end()


def reader_versions(paths: Iterable[Path]) -> dict[str, int]:
    """Versions of the readers of these files, by kind, except those still at their first: part of a build's
    identity."""
    return {kind: _VERSIONS[kind] for kind in sorted({_kind(path) or "" for path in paths}) if kind in _VERSIONS}


def packed(path: Path) -> bool:
    """Whether a file is compressed, so that its size does not tell how much text it holds."""
    return path.suffix.lower() in (*DECOMPRESSORS, *_COMPRESSES_ITSELF)


def _path_parts(path: Path) -> tuple[str, ...]:
    """Sort key of paths: computed once for each, instead of at each comparison."""
    return path.parts


def _kinds() -> str:
    """The suffixes of all formats, for messages."""
    *suffixes, last = FORMATS
    return f"{', '.join(suffixes)} or {last}"


def _kind(path: Path | str) -> str | None:
    """The suffix of a file's format, without that of its compression; None for an unknown format."""
    stem, kind = os.path.splitext(str(path).lower())
    packed = kind in DECOMPRESSORS
    if packed:
        kind = os.path.splitext(stem)[1]
    return None if kind not in FORMATS or (packed and kind in _COMPRESSES_ITSELF) else kind
