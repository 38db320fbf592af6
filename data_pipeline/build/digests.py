"""sha256 of every file that a build depends on: computed in tasks that commands share, and cached for unchanged files.

The digests are cached in the user's cache directory, by output, with the size, modification time and inode of each
file. So restarting a finished build only compares these.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

from data_pipeline.build.chunks import RunTasks
from data_pipeline.build.config import BuildConfig
from data_pipeline.build.inputs import FileState, InputSource, file_state
from data_pipeline.common.atomic import atomic_path
from data_pipeline.common.batches import groups_within
from data_pipeline.common.hashing import digest_of, file_sha256
from data_pipeline.common.tasks import BuildTask
from data_pipeline.dataset.cache import default_folder
from data_pipeline.errors import DataError

_TASK_BYTES, _TASK_FILES = 2**30, 2**12
_MOST_CACHED = 64  # outputs
_log = logging.getLogger(__name__)
Digests = dict[Path, str]
"""sha256 by file."""


def cached_digests(config: BuildConfig, sources: list[InputSource]) -> Digests | None:
    """The cached digests of an earlier build of this output, if no file has changed since; else None."""
    try:
        cached: dict[str, Any] = json.loads(_cache_file(config).read_bytes())
    except (OSError, ValueError):
        return None
    digests = {}
    for path, state in _states(config, sources).items():
        entry = cached.get(str(path), {})
        if entry.get("state") != list(state):
            return None
        digests[path] = str(entry["sha256"])
    return digests


def compute_digests(config: BuildConfig, sources: list[InputSource], run: RunTasks) -> Digests:
    """Reads all files, in tasks. Raises DataError for a file that changes while it is read."""
    states = _states(config, sources).items()
    groups = list(groups_within(states, lambda file: file[1][0], _TASK_BYTES, _TASK_FILES))
    tasks = [
        BuildTask(f"{number:06d}", partial(_digests, group), sum(state[0] for _, state in group))
        for number, group in enumerate(groups)
    ]
    digests = zip(groups, run("digests", tasks), strict=True)
    return {path: digest for group, its in digests for (path, _), digest in zip(group, its, strict=True)}


def cache_digests(config: BuildConfig, sources: list[InputSource], sha256: Digests) -> None:
    """Stores the digests for `cached_digests`."""
    states, file = _states(config, sources), _cache_file(config)
    entries = {str(path): {"state": states[path], "sha256": digest} for path, digest in sha256.items()}
    try:
        with atomic_path(file, durable=False) as path:
            path.write_text(json.dumps(entries))
        for old in sorted(file.parent.glob("*.json"), key=_modified)[:-_MOST_CACHED]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s can't be written (%s): the next start reads all input again.", file, error.strerror)


def _digests(files: list[tuple[Path, FileState]]) -> list[str]:
    digests = []
    for path, state in files:
        digests.append(file_sha256(path))
        if file_state(path) != state:
            raise DataError(f"{path} changed while it was read; start again once nothing writes to it.")
    return digests


def _states(config: BuildConfig, sources: list[InputSource]) -> dict[Path, FileState]:
    """The state of each file; input files have the state that `find_sources` recorded."""
    inputs = {file.path: file.state for source in sources for file in source.inputs}
    return inputs | {path: file_state(path) for step in config.steps for path in step.files() if path not in inputs}


def _cache_file(config: BuildConfig) -> Path:
    return default_folder() / "digests" / f"{digest_of(str(config.output.resolve()))[:32]}.json"


def _modified(path: Path) -> float:
    return path.stat().st_mtime
