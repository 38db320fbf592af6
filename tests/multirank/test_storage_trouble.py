"""Saves on disks that are full, read-only, or fail on one rank: all try again, and nothing is lost that was there."""

import errno
import math
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch.distributed as dist

from pretrain.checkpoint import files, unsaved
from pretrain.checkpoint import saver as saver_file
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.unsaved import SaveFailure, Unsaved
from pretrain.errors import RunError
from pretrain.process.urgency import Urgency
from tests.helpers.disks import fill, read_only, small_disk
from tests.helpers.ranks import run_ranks
from tests.helpers.storage import names_in, newest, save_steps
from tests.helpers.tiny import build_engine, record, tiny_config, train


class _Tried(NamedTuple):
    """What a rank saw of a run whose saves fail."""

    begun: list[int]
    """steps at which a save was begun"""
    failed: list[int]
    """those of them that came to nothing"""
    end: str


def _train_while_the_last_rank_cannot_write(
    directory: Path, failures: float, limit_steps: int, in_flight: int
) -> _Tried:
    """Trains and saves every second step, as the loop does; the last rank's disk is full for `failures` writes."""
    engine = build_engine(tiny_config())
    whole_write, left = files.write, [failures]

    def write(*arguments: Any) -> files.Digest:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole_write(*arguments)

    begun: list[int] = []
    failed: list[SaveFailure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsaved, "_FIRST_S", 0.0)
        patch.setattr(saver_file, "_LAST_TRIES_S", (0.01, 0.01))
        if dist.get_rank() == dist.get_world_size() - 1:
            patch.setattr(files, "write", write)
        step, limits = 0, Unsaved(0, limit_steps)
        try:
            with Saver(directory, 2, in_flight, failed=failed.append, unsaved=limits) as saver:
                while step < 12:
                    step += 1
                    train(engine, range(step, step + 1))
                    time.sleep(0.05 * dist.get_rank())  # ranks learn of it at different moments
                    urgency = Urgency(int(engine.largest(np.array([float(saver.urgency(step))]))[0]))
                    if urgency or step % 2 == 0:
                        begun.append(step)
                        save = saver.save_and_wait if urgency is Urgency.LAST_TRY or step == 12 else saver.save
                        save(engine.state(), record(step), b"tokenizer")
        except RunError as error:
            return _Tried(begun, [failure.step for failure in failed], str(error))
    return _Tried(begun, [failure.step for failure in failed], "")


@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_save_that_fails_on_one_rank_is_tried_again_by_all_while_training_goes_on(
    in_flight: int, tmp_path: Path
) -> None:
    first, *others = run_ranks(2, _train_while_the_last_rank_cannot_write, tmp_path, 2, 100, in_flight)
    assert first.end == ""
    assert first.failed[0] == 2, "the first save failed, and training went on"
    assert len(first.failed) == 2
    assert any(step % 2 for step in first.begun), "a try comes before the next save is due"
    assert all(other == first._replace(failed=[]) for other in others), "one rank reports, all do the same"
    assert run_ranks(1, newest, tmp_path)[0] == ("step-00000012", [])


def test_too_much_unsaved_ends_the_run_at_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    run_ranks(1, save_steps, tmp_path, [1], 2)
    first, *others = run_ranks(2, _train_while_the_last_rank_cannot_write, tmp_path, math.inf, 5, 1)
    assert first.begun[-1] == 5
    assert first.failed[-3:] == [5, 5, 5], "the last save is tried three times"
    assert "step-00000005 failed: no space left" in first.end
    assert first.end.endswith("after 3 tries the run ends, and 5 steps are lost")
    assert all(other == first._replace(failed=[]) for other in others)
    assert names_in(tmp_path) == ["step-00000001"], "what was there stays, and nothing half written"


def _save_on_changing_disks(disk: Path, damage: bool) -> list[tuple[str, list[str]]]:
    """Saves of steps 1, 2, ... with keep=1: one on a disk that is well, then others on one that is read-only, full, and
    well again; each one's failure and what is there then. `damage`: the newest is damaged after the first."""
    directory = disk / "checkpoints"
    engine = build_engine(tiny_config())
    seen = []

    def attempt(step: int) -> None:
        failed: list[SaveFailure] = []
        with suppress(RunError), Saver(directory, keep=1, in_flight=0, failed=failed.append) as saver:
            saver.save(engine.state(), record(step), b"tokenizer")
        seen.append((failed[0].reason if failed else "", names_in(directory)))

    attempt(1)
    if damage:
        with (directory / "step-00000001" / "tensors-00000.safetensors").open("r+b") as file:
            file.write(b"damage")
    (directory / "step-00000007.tmp").mkdir()
    with read_only(disk):
        attempt(2)
    ballast = fill(disk)
    attempt(2)
    ballast.unlink()
    with pytest.MonkeyPatch.context() as patch:  # it fills up in the middle of the save
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))
        ballast = fill(disk)
        with ballast.open("r+b") as file:
            file.truncate(ballast.stat().st_size - 65536)
        attempt(2)
    ballast.unlink()
    attempt(2)
    return seen


@pytest.mark.parametrize("damage", [False, True], ids=["valid", "damaged"])
def test_a_disk_that_is_read_only_or_full_keeps_the_last_checkpoint_until_there_is_another(
    damage: bool, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        (well, read_only_, full, filled_up, again) = run_ranks(1, _save_on_changing_disks, disk, damage)[0]
        assert well == ("", ["step-00000001"])
        assert "Read-only file system" in read_only_[0]
        assert "restore access to it" in read_only_[0]
        assert read_only_[1] == ["step-00000001", "step-00000007.tmp"]
        for reason, names in (full, filled_up):
            assert "step-00000002 failed: no space left on the disk of" in reason
            assert names == ["step-00000001"], "what a failed save left is gone, and makes no second one fail"
        assert "tensors-00000.safetensors" in filled_up[0]
        assert again == ("", ["step-00000002"])
        assert run_ranks(1, newest, disk / "checkpoints")[0] == ("step-00000002", [])
