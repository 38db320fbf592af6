"""sha256 of every file that a build depends on: found in tasks that commands share, and once for a file that stays.

What was found is kept in the user's cache directory, by output, with the size, time of change and inode of each file.
So a build that is started again when it is done asks for these alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.build.chunks import RunTasks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import FileState, InputSource, file_state
from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.common.tasks import BuildTask
from data_pipeline.dataset.cache import default_folder
from data_pipeline.errors import DataError

_TASK_BYTES, _TASK_FILES = 2**30, 2**12
_MOST_KEPT = 64  # outputs
_log = logging.getLogger(__name__)
Digests = dict[Path, str]
"""sha256 by file."""


def cached_digests(config: BuildConfig, sources: list[InputSource]) -> Digests | None:
    """Those kept of an earlier build of this output, if each file is as it was then."""
    try:
        kept: dict[str, Any] = json.loads(_kept(config).read_bytes())
    except (OSError, ValueError):
        return None
    found = {}
    for path, state in _states(config, sources).items():
        one = kept.get(str(path), {})
        if one.get("state") != list(state):
            return None
        found[path] = str(one["sha256"])
    return found


def compute_digests(config: BuildConfig, sources: list[InputSource], run: RunTasks) -> Digests:
    """Reads all files, in tasks. Raises DataError for one that changes meanwhile."""
    groups = list(_groups(_states(config, sources)))
    tasks = [
        BuildTask(f"{number:06d}", partial(_digests, group), sum(state[0] for _, state in group))
        for number, group in enumerate(groups)
    ]
    found = zip(groups, run("digests", tasks), strict=True)
    return {path: digest for group, its in found for (path, _), digest in zip(group, its, strict=True)}


def cache_digests(config: BuildConfig, sources: list[InputSource], sha256: Digests) -> None:
    """For `cached_digests`."""
    states = _states(config, sources)
    kept = {str(path): {"state": states[path], "sha256": digest} for path, digest in sha256.items()}
    try:
        with atomic_path(_kept(config), durable=False) as path:
            path.write_text(json.dumps(kept))
        for old in sorted(_kept(config).parent.glob("*.json"), key=_age)[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s can't be written (%s): the next start reads all input again.", _kept(config), error.strerror)


def _groups(files: dict[Path, FileState]) -> Iterator[list[tuple[Path, FileState]]]:
    held: list[tuple[Path, FileState]] = []
    size = 0
    for path, state in files.items():
        if held and (size + state[0] > _TASK_BYTES or len(held) == _TASK_FILES):
            yield held
            held, size = [], 0
        held.append((path, state))
        size += state[0]
    yield held


def _digests(files: list[tuple[Path, FileState]]) -> list[str]:
    found = []
    for path, state in files:
        found.append(file_sha256(path))
        if file_state(path) != state:
            raise DataError(f"{path} changed while it was read; start again once nothing writes to it.")
    return found


def _states(config: BuildConfig, sources: list[InputSource]) -> dict[Path, FileState]:
    """Of each file; of input, as it was found."""
    found = {file.path: file.state for source in sources for file in source.inputs}
    return found | {path: file_state(path) for step in config.steps for path in step.files() if path not in found}


def _kept(config: BuildConfig) -> Path:
    return default_folder() / "digests" / f"{digest_of(str(config.output.resolve()))[:32]}.json"


def _age(path: Path) -> float:
    return path.stat().st_mtime
