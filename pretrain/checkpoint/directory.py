"""A run's `checkpoints/`: what the names in it mean.

`step-NNNNNNNN` is complete. `step-*.tmp` is not: being written, or being removed. `step-*.damaged` was set aside.
`best` links to the best one by `checkpoint.best`.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from data_pipeline.common.relative import relative_note
from pretrain.errors import ConfigError, RunError
from pretrain.run_dir.paths import BEST, MANIFEST, RECORD, RunDir, complete_checkpoints, incomplete_checkpoints

_REPLACED = ".replaced.tmp"


def locate(path: Path) -> list[Path]:
    """Checkpoints that a path refers to, newest first: itself, or those of a run. Raises ConfigError if there is none,
    RunError if the path cannot be read."""
    try:
        if (path / RECORD).exists() or ((path / MANIFEST).exists() and not _is_dataset(path)):
            return [_linked(path)]
        checkpoints = complete_checkpoints(RunDir(path).checkpoints)
        inside = complete_checkpoints(path) if not checkpoints else []
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read ({error.strerror}): restore access to it") from None
    if inside:
        raise ConfigError(
            f"{path} is the folder of a run's checkpoints: name the run ({path.parent}) for its newest valid one, or "
            f"one of them, such as {inside[-1]}"
        )
    if not checkpoints and not path.exists():
        raise ConfigError(f"{path} does not exist: name a checkpoint or a run{relative_note(path)}")
    if not checkpoints:
        raise ConfigError(f"{path} is neither a checkpoint nor a run that has one")
    return checkpoints[::-1]


def link_best(checkpoint: Path) -> None:
    """Has the link `best` beside a checkpoint lead to it."""
    link = checkpoint.with_name(BEST)
    if link.is_symlink() and os.readlink(link) == checkpoint.name:
        return
    temporary = link.with_name(f"{BEST}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(checkpoint.name)
    temporary.replace(link)


def _is_dataset(path: Path) -> bool:
    """Whether a folder with a manifest is a dataset, whose manifest has the same name as a checkpoint's."""
    return any(path.glob("*-00000.tar"))


def _linked(path: Path) -> Path:
    """The checkpoint that the link `best` leads to now, or another path as it is: the run may move the link."""
    return path.with_name(os.readlink(path)) if path.name == BEST and path.is_symlink() else path


def tidy(directory: Path) -> None:
    """Removes what was left half written or half removed. Call when nothing is being saved."""
    for leftover in incomplete_checkpoints(directory):
        replaced = leftover.with_name(leftover.name.removesuffix(_REPLACED))
        if leftover.name.endswith(_REPLACED) and not replaced.exists():
            leftover.rename(replaced)  # ended just before the new one took its name
        else:
            discard(leftover)


def publish(temporary: Path, final: Path) -> None:
    """Gives a finished checkpoint its name, in place of one that has it already."""
    if not final.exists():
        temporary.rename(final)
        return
    old = final.with_name(final.name + _REPLACED)
    final.rename(old)
    temporary.rename(final)
    discard(old)


def remove(checkpoint: Path) -> None:
    """Removes a checkpoint. It loses its name first, so that the name never means half of one, and gets one that no
    other has: a network file system keeps files that someone still reads. The next `tidy` tries again."""
    unnamed = checkpoint.with_name(f"{checkpoint.name.partition('.')[0]}.{secrets.token_hex(4)}.tmp")
    shutil.rmtree(checkpoint.rename(unnamed), ignore_errors=True)


def set_aside(checkpoint: Path) -> Path:
    """Renames a damaged checkpoint, so that it is not counted among those to keep."""
    aside = checkpoint.with_name(f"{checkpoint.name}.damaged")
    discard(aside)
    return checkpoint.rename(aside)


def discard(path: Path) -> None:
    """Removes what is in the way, if it is there; what can't be renamed stays."""
    with suppress(OSError):
        remove(path)
