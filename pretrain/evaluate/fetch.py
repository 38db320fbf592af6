"""The files of tasks, from the Hugging Face hub: what `datasets` reads there, as plain JSON lines.

The fields are the dataset's own, so that the files are what anyone gets who exports it.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from data_pipeline.common.atomic import atomic_path
from pretrain.errors import ConfigError, RunError
from pretrain.evaluate.tasks.base import Fetched
from pretrain.evaluate.tasks.registry import HELD_OUT, NAMES, task_named

_EVERY = "*"
_OFFLINE = "HF_HUB_OFFLINE"
_HUB = "https://huggingface.co"
_WAIT_S = 10


def fetch_tasks(names: Sequence[str], directory: Path, say: Callable[[str], None]) -> tuple[int, int]:
    """Downloads the files of these tasks, or of every task if there are none, and calls `say` with each outcome.
    Returns the number of files and how many could not be downloaded. Raises ConfigError for a task that has no files
    on the hub."""
    files = {}
    for name in names or NAMES:
        task = None if name == HELD_OUT else task_named(name)
        for file in task.fetch if task is not None else ():
            files[file.file] = (name, file)
        if names and (task is None or not task.fetch):
            source = f": {task.source}" if task is not None and task.source else ""
            raise ConfigError(f"task {name} has no files on the hub{source}")
    try_hub()
    failed = 0
    for name, file in files.values():
        try:
            count = fetch(file, directory)
        except RunError as error:
            say(f"{name}: {error}")
            failed += 1
            continue
        say(f"{name}: {file.file} " + ("exists already" if count is None else f"has {count:,} lines"))
    return len(files), failed


def try_hub() -> None:
    """Where the hub does not answer, has `datasets`, which must not be imported yet, look into its cache alone, instead
    of trying again for half a minute a file."""
    if _OFFLINE in os.environ:
        return
    try:
        urlopen(os.environ.get("HF_ENDPOINT", _HUB), timeout=_WAIT_S).close()
    except HTTPError:  # somebody answers
        return
    except (OSError, ValueError):
        os.environ[_OFFLINE] = "1"


def fetch(file: Fetched, directory: Path) -> int | None:
    """Writes one file atomically, and returns its lines; None: it is there already. Raises RunError if the
    dataset cannot be downloaded."""
    path = directory / file.file
    if any(there.is_file() for there in (path, path.with_name(f"{path.name}.gz"))):
        return None
    count = 0
    try:
        with atomic_path(path) as scratch, scratch.open("w", encoding="utf-8") as out:
            for row in _rows(file):
                out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
            if not count:
                raise ValueError("it holds no row")
    except Exception as error:  # whatever the network, the hub, a dataset's files or the disk come up with
        part = f"part {file.config}, " if file.config is not None else ""
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            f"{path} is not written: dataset {file.dataset} ({part}split {file.split}) cannot be downloaded: {why:.200}"
        ) from error
    return count


def _rows(file: Fetched) -> Iterator[dict[str, Any]]:
    import datasets  # slow to import

    parts = datasets.get_dataset_config_names(file.dataset) if file.config == _EVERY else [file.config]
    for part in parts:
        yield from datasets.load_dataset(file.dataset, part, split=file.split)
