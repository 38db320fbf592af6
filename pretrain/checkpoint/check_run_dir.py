"""Check that a directory can be used as `run.dir`, by its content and its parents."""

import errno
import os
from pathlib import Path

from data_pipeline.dataset.mix import MIX_MANIFEST
from pretrain.errors import ConfigError
from pretrain.run_dir.paths import RECORD, RunDir

_DATASET = ("manifest.json", MIX_MANIFEST)
_EXPORT = "config.json"  # of a model for transformers
_MISTAKES = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EACCES)


def check_run_dir(path: Path) -> None:
    """Raises ConfigError where a run would be mixed up with what is there: a dataset, an export, a checkpoint, several
    runs, or what a run keeps of itself. A directory in which a run has begun is that run's, whatever else it holds."""
    try:
        os.stat(path)
        path = path.resolve()
        problem = None if RunDir(path).has_begun else _problem(path)
    except FileNotFoundError:
        problem = _folder_problem(path.resolve())
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _MISTAKES:
            return  # whoever takes the directory has more to say of a disk in trouble
        problem = f"cannot be a directory ({error.strerror if isinstance(error, OSError) else error})"
    if problem is not None:
        raise ConfigError(f"run.dir={path} {problem}: choose a directory of its own for the run")


def _problem(path: Path) -> str | None:
    if not path.is_dir():
        return "is a file"
    if (path / RECORD).is_file():
        return "is a checkpoint"
    if any((path / name).is_file() for name in _DATASET):
        return "holds a dataset"
    if (path / _EXPORT).is_file():
        return "holds a model for transformers"
    run = next((folder for folder in sorted(_folders(path)) if RunDir(folder).has_begun), None)
    return _folder_problem(path) if run is None else f"holds other runs, such as {run.name}"


def _folder_problem(path: Path) -> str | None:
    """Problem of a path inside a folder that a run keeps for itself, as the end of a sentence; None: it is in no such
    folder."""
    for folder in (path, *path.parents):
        if folder in RunDir(folder.parent).folders and RunDir(folder.parent).has_begun:
            return f"lies in {folder.name} of the run {folder.parent}"
    return None


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir()]
