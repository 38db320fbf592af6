"""Files -> documents: which format reads a file, and what reads a file that is compressed.

A new format is one file in `formats/` and one row here, or a function of another package (`pretrain.formats`). Whatever
can't be read as it should be is an error that names the file and where in it, unless `max_bad_fraction` lets a few
malformed records be left out; only a wiki dump may end early. Nothing is ever extracted to disk, so names inside a file
lead nowhere.
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
    Callable,  # type: ignore[arg-type]  # which isinstance knows
)
"""What reads a file, by its suffix: (position, texts) of each document in order."""
_VERSIONS = {".xml": mediawiki.VERSION}
"""Of those whose equal files have given other documents before."""
_log = logging.getLogger(__name__)
_COMPRESSES_ITSELF = (".parquet",)
_HAS_FIELDS = (".jsonl", ".parquet")


def find_inputs(patterns: str | list[str]) -> list[Path]:
    """Files that `patterns` name, sorted and without repeats; a directory stands for the readable files below it.

    Raises DataError when one names nothing, or a file of an unknown kind.
    """
    found: dict[Path, str] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            there = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
            files = [(name, _kind(name)) for name in there if os.path.isfile(name)]
            matches = {Path(name): kind for name, kind in files if kind}
            if others := sorted(name for name, kind in files if not kind):
                _log.warning(
                    "%d files in %s are of no known kind and left out, such as %s.", len(others), path, others[0]
                )
        else:
            # A file whose name holds [ or * is itself before it is a pattern.
            names = [str(path)] if path.is_file() else glob.glob(str(path), recursive=True)
            matches = {Path(name): _kind(name) or "" for name in names if os.path.isfile(name)}
        if not matches:
            raise DataError(f"No file matches input {pattern!r}; give a {_kinds()} file, directory or glob.")
        found |= matches
    for path, kind in found.items():
        if not kind:
            raise DataError(
                f"{path} is of no known kind; input is {_kinds()}, all but .parquet also as {', '.join(DECOMPRESSORS)}."
            )
    return sorted(found, key=_parts)


def read_documents(
    path: Path, config: ReadingConfig, name: str | None = None, bad: MalformedRecords | None = None
) -> Iterator[Document]:
    """The documents of one file, in order, which say that they come from `name` (by itself the path).

    `bad` takes in what was malformed and left out. Raises DataError, naming the file and the line, record, row or byte,
    for what can't be read and for the malformed beyond `config.max_bad_fraction`.
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
    """Of the formats of these files that are read otherwise than at first, by kind: part of what a build's text depends
    on."""
    return {kind: _VERSIONS[kind] for kind in sorted({_kind(path) or "" for path in paths}) if kind in _VERSIONS}


def packed(path: Path) -> bool:
    """Whether a file's size does not tell how much is in it."""
    return path.suffix.lower() in (*DECOMPRESSORS, *_COMPRESSES_ITSELF)


def _parts(path: Path) -> tuple[str, ...]:
    """What paths are sorted by; told once for each, and not at each comparison."""
    return path.parts


def _kinds() -> str:
    """The suffixes of all formats, for a sentence."""
    *suffixes, last = FORMATS
    return f"{', '.join(suffixes)} or {last}"


def _kind(path: Path | str) -> str | None:
    """The suffix that says what is in a file, whatever compresses it; None when it is something else."""
    stem, kind = os.path.splitext(str(path).lower())
    packed = kind in DECOMPRESSORS
    if packed:
        kind = os.path.splitext(stem)[1]
    return None if kind not in FORMATS or (packed and kind in _COMPRESSES_ITSELF) else kind
