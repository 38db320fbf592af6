"""The first stage of a build: finds the input files, and computes the build's identity from them and its settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.build.config import BuildConfig
from data_pipeline.common.hashing import digest_of
from data_pipeline.config import TokenizerConfig
from data_pipeline.dataset.manifest import FileRecord
from data_pipeline.dataset.records import FORMAT
from data_pipeline.errors import DataError
from data_pipeline.reading.readers import find_inputs, reader_versions
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.released import AS_RELEASED, DocumentBounds, load_released

_BUILD_VERSION = 2  # increase it when the same input and settings give another dataset
_WORK_VERSION = 5  # increase it when the format of a stopped build's scratch folder changes
_WORDPIECE_VERSION = 2  # increase it when training a wordpiece on the same text gives another one
SHARD_SETTINGS = ("member_tokens", "shard_tokens")
"""Settings that only the last stages depend on."""
FileState = tuple[int, int, int]
EXECUTION_SETTINGS = ("output", "executor", "ray_address", "workers", "piece_bytes")
"""Settings of how and where a dataset is built, which do not change its contents."""


class Reading(Enum):
    """Ways to read a tokenizer of `tokenizer.path`, and to give documents its begin of text."""

    RELEASED = auto()
    """With the files beside it, and begins."""
    WITHOUT_BEGINS = auto()
    """Without begins."""
    BARE_FILE = auto()
    """Without begins and the files beside it."""


@dataclass(frozen=True)
class InputFile:
    """One file to read."""

    path: Path
    name: str
    """Its name in the dataset: the path relative to the common folder of the source's files."""
    validation: bool
    """Whether all of its documents are held out."""
    state: FileState
    """Its size in bytes, modification time in ns, and inode, recorded before it was read."""

    def check_unchanged(self) -> None:
        """Raises DataError when the file has changed since it was found."""
        if file_state(self.path) != self.state:
            raise DataError(f"{self.path} changed while it was read; start again once nothing writes to it.")


@dataclass(frozen=True)
class InputSource:
    """Files that become one dataset."""

    name: str
    """Empty for the only source."""
    weight: float
    inputs: tuple[InputFile, ...]

    @property
    def has_validation_files(self) -> bool:
        """Whether it has validation files; if not, documents are held out by the hash of their text."""
        return any(file.validation for file in self.inputs)


def find_sources(config: BuildConfig) -> list[InputSource]:
    """The sources in the order of the config, their files sorted. Raises DataError where one has none."""
    return [
        InputSource(given.name, given.weight, _inputs(given.input, given.validation_input))
        for given in config.resolved_sources
    ]


def bounds_of(settings: TokenizerConfig) -> DocumentBounds:
    """The begin and end of documents that the settings name."""
    return DocumentBounds(settings.begin_of_text, settings.end_of_text)


def file_records(source: InputSource, sha256: dict[Path, str]) -> list[FileRecord]:
    """Name, size and digest of a source's files."""
    return [FileRecord(file=f.name, bytes=f.state[0], sha256=sha256[f.path]) for f in source.inputs]


def accepted_identities(config: BuildConfig, sources: list[InputSource], sha256: dict[Path, str]) -> Iterator[str]:
    """Build identities that a dataset of these settings may have: the present one, and those of earlier versions, whose
    copies of a text lay side by side, which trained a wordpiece otherwise, whose documents had no begin of text, and
    which read a tokenizer without the files beside it."""
    yield build_identity(config, sources, sha256)
    earlier = partial(build_identity, config, sources, sha256, as_now=False)
    yield earlier()
    yield earlier(Reading.WITHOUT_BEGINS)
    if config.tokenizer.path and bounds_of(config.tokenizer) == AS_RELEASED:
        with suppress(DataError):  # a file that alone names no end, which was refused then
            yield earlier(Reading.BARE_FILE)


def build_identity(
    config: BuildConfig,
    sources: list[InputSource],
    sha256: dict[Path, str],
    reading: Reading = Reading.RELEASED,
    *,
    as_now: bool = True,
) -> str:
    """Digest of everything that the built dataset depends on: settings, contents of files, an existing tokenizer, and,
    `as_now`, that copies of a text lie apart (`copies.py`) and how a wordpiece is trained."""
    held_out = [[file.validation for file in source.inputs] for source in sources]
    contents = [[source.name, source.weight, [[f.name, sha256[f.path]] for f in source.inputs]] for source in sources]
    steps = [step.model_dump(mode="json", exclude=set(step.execution_settings()) | step.paths) for step in config.steps]
    given = [[[path.name, sha256[path]] for path in step.files()] for step in config.steps]
    readers = reader_versions(sha256)  # sha256 has every file that is read
    order = "copies apart" if as_now else ""
    trained = _training_version(config) if as_now else []
    versions = [
        entry for entry in (readers, _step_versions(config), order, trained) if entry
    ]  # else it stays as it was
    settings = _settings(config, reading)
    return digest_of([FORMAT, _BUILD_VERSION, settings, contents, held_out, steps, given, *versions])


def work_identity(config: BuildConfig, sources: list[InputSource]) -> str:
    """Digest of everything that results in the scratch folder depend on, except the sizes of shards and members. It is
    cheap, since files enter by size and modification time."""
    settings = {name: value for name, value in _settings(config).items() if name not in SHARD_SETTINGS}
    files = [[s.name, s.weight, [[f.name, f.validation, *f.state[:2]] for f in s.inputs]] for s in sources]
    given = [[[path.name, *file_state(path)[:2]] for path in step.files()] for step in config.steps]
    steps = [step.model_dump(mode="json", exclude=set(step.paths)) for step in config.steps]
    readers = reader_versions(path for source in sources for path in (file.path for file in source.inputs))
    versions = [readers, _step_versions(config), *filter(None, [_training_version(config)])]
    return digest_of([_WORK_VERSION, _BUILD_VERSION, settings, files, given, steps, *versions])


def _training_version(config: BuildConfig) -> list[str | int]:
    """Kind and version of a tokenizer whose training has changed since version 1."""
    settings = config.tokenizer
    return ["wordpiece", _WORDPIECE_VERSION] if settings.trains and settings.type == "wordpiece" else []


def _step_versions(config: BuildConfig) -> list[list[str | int]]:
    """Name and version of each step whose behaviour with its settings has changed since version 1."""
    versions = [(step.title, step.version_of_settings()) for step in config.steps]
    return [[title, version] for title, version in versions if version > 1]


def _settings(config: BuildConfig, reading: Reading = Reading.RELEASED) -> dict[str, Any]:
    settings = config.model_dump(
        mode="json",
        exclude={
            "input": True,
            "validation_input": True,
            "sources": True,
            **dict.fromkeys(EXECUTION_SETTINGS, True),
            "tokenizer": {"path", "unknown_limit"},
            "steps": True,
        },
        exclude_none=True,
    )
    if config.tokenizer.path:
        if reading is Reading.BARE_FILE:
            tokenizer = load_tokenizer(config.tokenizer.path)
        else:
            tokenizer = load_released(config.tokenizer.path, bounds_of(config.tokenizer)).tokenizer
        settings["tokenizer"] = tokenizer.identity
        if reading is Reading.RELEASED and tokenizer.begin_of_text is not None:  # else the identity stays as it was
            settings["begin_of_text"] = tokenizer.begin_of_text
    return settings


def _inputs(patterns: str | list[str], validation: str | list[str] | None) -> tuple[InputFile, ...]:
    held_out = set(find_inputs(validation)) if validation else set[Path]()
    found = find_inputs(patterns)
    if held_out:
        training = set(found) - held_out
        if not training:
            raise DataError(f"validation_input names all of the input {patterns}; give other files to train on.")
        found = sorted(training | held_out)
    resolved = list(_resolved(found))
    folder = os.path.commonpath({os.path.dirname(real) for real, _ in resolved})
    names = [real[len(folder) :].lstrip("/") for real, _ in resolved]
    return tuple(
        InputFile(path, name, path in held_out, state)
        for path, name, (_, state) in zip(found, names, resolved, strict=True)
    )


def _resolved(paths: list[Path]) -> Iterator[tuple[str, FileState]]:
    """(real path, state) of each file. Each folder is resolved only once, since resolving a path costs as much as
    reading a small file."""
    folders: dict[str, str] = {}
    for path in paths:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            yield os.path.realpath(path), file_state(path)
            continue
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        yield os.path.join(folders[folder], name), _state(status)


def file_state(path: Path) -> FileState:
    """(size in bytes, modification time in ns, inode)"""
    return _state(os.stat(path))


def _state(status: os.stat_result) -> FileState:
    return status.st_size, status.st_mtime_ns, status.st_ino
