"""Checkpoints of a small engine, saved and looked at."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pretrain.checkpoint import store
from pretrain.errors import RunError
from tests.helpers import privileges
from tests.helpers.tiny import build_engine, save, tiny_config

SMALL = {"layers": 1, "hidden": 8, "heads": 2, "sequence_length": 8, "vocabulary": 16}


def save_steps(directory: Path, steps: list[int], keep: int, model: dict[str, Any] | None = None) -> None:
    save(directory, build_engine(tiny_config(model=model or {})), *steps, keep=keep)


def newest(directory: Path) -> tuple[str | None, list[str]]:
    warnings: list[str] = []
    checkpoint = store.newest_valid(directory, warnings.append)
    return checkpoint.name if checkpoint else None, warnings


def newest_error(directory: Path) -> str:
    privileges.drop()
    with pytest.raises(RunError) as error:
        store.newest_valid(directory, lambda _: None)
    return str(error.value)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def save_on_a_disk_that_forgets(directory: Path) -> str:
    """Step 2 is written and synced by all, but for one bit on the last rank."""
    engine = build_engine(tiny_config())
    save(directory, engine, 1)
    whole_sync = os.fsync

    def sync(descriptor: int) -> None:
        whole_sync(descriptor)
        os.pwrite(descriptor, b"\xff", os.fstat(descriptor).st_size - 1)

    if dist.get_rank() == dist.get_world_size() - 1:
        os.fsync = sync
    with pytest.raises(RunError) as error:
        save(directory, engine, 2, keep=1)
    return str(error.value)
