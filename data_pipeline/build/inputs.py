"""The first stage of a build: which files there are, and what the build is, as digests of them and of its settings."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.build.config import BuildConfig
from data_pipeline.common.atomic import written
from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.dataset.manifest import FileRecord
from data_pipeline.dataset.records import FORMAT
from data_pipeline.errors import DataError
from data_pipeline.reading.readers import find_inputs, reader_versions
from data_pipeline.tokenizers.load import load_tokenizer

_BUILD_VERSION = 2  # raise it when equal input and settings would give another dataset
_DIGESTS = "digests.json"


@dataclass(frozen=True)
class Input:
    """One file to read."""

    path: Path
    name: str
    """What the dataset calls it: its path from the folder that the source's files share, wherever that folder lies."""
    validation: bool
    """Whether all of its documents are held out."""
    state: tuple[int, int, int]
    """Its size in bytes, time of change in ns, and inode, before anything of it was read."""

    def check_unchanged(self) -> None:
        """Raises DataError when it is not the file any more that was found at the start."""
        if _state(self.path) != self.state:
            raise DataError(f"{self.path} changed while it was read; start again once nothing writes to it.")


@dataclass(frozen=True)
class InputSource:
    """Files that become one dataset."""

    name: str
    """"" when it is the only one."""
    weight: float
    inputs: tuple[Input, ...]

    @property
    def has_validation_files(self) -> bool:
        """Without any, hashes of texts decide on what is held out."""
        return any(file.validation for file in self.inputs)


def find_sources(config: BuildConfig) -> list[InputSource]:
    """The sources in the order of the config, their files sorted. Raises DataError where one has none."""
    return [
        InputSource(given.name, given.weight, _inputs(given.input, given.validation_input))
        for given in config.resolved_sources
    ]


def digests(config: BuildConfig, sources: list[InputSource], folder: Path) -> dict[Path, str]:
    """sha256 of every file that the build depends on: the sources', and those that steps read.

    What a build that was stopped kept in `folder` is taken from there, for files whose size, time and inode are as they
    were.
    """
    known = _known(folder / _DIGESTS)
    paths = dict.fromkeys(file.path for source in sources for file in source.inputs)
    paths |= dict.fromkeys(path for step in config.steps for path in step.files())
    new = [path for path in paths if known.get(str(path), {}).get("state") != list(_state(path))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing lets other threads run
        found = dict(zip(new, pool.map(file_sha256, new), strict=True))
    return {path: found.get(path) or known[str(path)]["sha256"] for path in paths}


def keep_digests(sha256: dict[Path, str], folder: Path) -> None:
    """Writes to `folder` what `digests` found, so that a build that goes on need not read all input again."""
    kept = {str(path): {"state": _state(path), "sha256": digest} for path, digest in sha256.items()}
    with written(folder / _DIGESTS) as path:
        path.write_text(json.dumps(kept))


def files_of(source: InputSource, sha256: dict[Path, str]) -> list[FileRecord]:
    """A source's files by their content."""
    return [FileRecord(file=f.name, bytes=f.state[0], sha256=sha256[f.path]) for f in source.inputs]


def identity_of(config: BuildConfig, sources: list[InputSource], sha256: dict[Path, str]) -> str:
    """Digest of all that decides what the build makes: settings, files by content, the tokenizer if one is given."""
    settings = config.model_dump(
        mode="json",
        exclude={
            "input": True,
            "validation_input": True,
            "sources": True,
            "output": True,
            "workers": True,
            "piece_bytes": True,
            "tokenizer": {"path"},
            "steps": True,
        },
        exclude_none=True,
    )
    if config.tokenizer.path:
        settings["tokenizer"] = load_tokenizer(config.tokenizer.path).identity
    held_out = [[file.validation for file in source.inputs] for source in sources]
    contents = [[source.name, source.weight, [[f.name, sha256[f.path]] for f in source.inputs]] for source in sources]
    steps = [step.model_dump(mode="json", exclude=set(step.state()) | step.paths) for step in config.steps]
    given = [[[path.name, sha256[path]] for path in step.files()] for step in config.steps]
    readers = reader_versions(sha256)  # sha256 has each file that is read
    versions = [readers] if readers else []  # so that other builds are what they were
    return digest_of([FORMAT, _BUILD_VERSION, settings, contents, held_out, steps, given, *versions])


def _inputs(patterns: str | list[str], validation: str | list[str] | None) -> tuple[Input, ...]:
    held_out = set(find_inputs(validation) if validation else [])
    training = set(find_inputs(patterns)) - held_out
    if not training:
        raise DataError(f"validation_input names all of the input {patterns}; give other files to train on.")
    found = sorted(training | held_out)
    folder = os.path.commonpath([path.resolve().parent for path in found])
    return tuple(Input(p, p.resolve().relative_to(folder).as_posix(), p in held_out, _state(p)) for p in found)


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _known(path: Path) -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads(path.read_bytes())
        return known
    except FileNotFoundError:
        return {}
