"""Names of checkpoints, which of them are kept, and what a kill leaves behind."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pretrain.checkpoint import directory as directories
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.saver import Saver
from pretrain.run_dir.paths import complete_checkpoints
from tests.helpers.ranks import run_ranks
from tests.helpers.storage import names_in, newest, save_on_a_disk_that_forgets, save_steps
from tests.helpers.tiny import build_engine, record, save, tiny_config


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    run_ranks(2, save_steps, tmp_path, [99_999_998, 99_999_999, 100_000_000], 2)
    assert names_in(tmp_path) == ["step-100000000", "step-99999999"]
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]


def test_a_failed_save_removes_nothing(tmp_path: Path) -> None:
    run_ranks(1, save_steps, tmp_path, [1, 2], 2)
    assert len(run_ranks(2, save_on_a_disk_that_forgets, tmp_path)) == 2  # keeps one
    assert run_ranks(1, newest, tmp_path)[0] == ("step-00000002", [])


def _half(path: Path) -> None:
    """What a kill in the middle of writing or removing leaves."""
    shutil.copytree(path.parent / "step-00000002", path)
    (path / "manifest.json").unlink()


@pytest.mark.parametrize("name", ["step-00000003.tmp", "step-00000001.removed.tmp", "step-00000002.replaced.tmp"])
@pytest.mark.parametrize("then", ["start", "save"])
def test_what_a_kill_left_half_done_is_no_checkpoint_and_goes_away(name: str, then: str, tmp_path: Path) -> None:
    run_ranks(1, save_steps, tmp_path, [2], 2)
    _half(tmp_path / name)
    if then == "start":
        assert run_ranks(1, newest, tmp_path)[0] == ("step-00000002", [])
        assert names_in(tmp_path) == ["step-00000002"]
    else:
        run_ranks(1, save_steps, tmp_path, [3], 2)
        assert names_in(tmp_path) == ["step-00000002", "step-00000003"]


def test_what_cannot_be_deleted_is_out_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imitates a network file system that keeps a file which is still open elsewhere."""
    run_ranks(1, save_steps, tmp_path, [2], 2)
    _half(tmp_path / "step-00000003.tmp")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(3):
            directories.tidy(tmp_path)
            assert len(names_in(tmp_path)) == 2
            assert not (tmp_path / "step-00000003.tmp").exists()
        (tmp_path / "step-00000002.damaged").mkdir()
        (tmp_path / "step-00000002.damaged" / "kept").touch()
        directories.set_aside(tmp_path / "step-00000002")
    directories.tidy(tmp_path)
    assert names_in(tmp_path) == ["step-00000002.damaged"]


def test_a_kill_while_one_replaces_another_loses_neither(tmp_path: Path) -> None:
    run_ranks(1, save_steps, tmp_path, [2], 1)
    (tmp_path / "step-00000002").rename(tmp_path / "step-00000002.replaced.tmp")
    assert run_ranks(1, newest, tmp_path)[0] == ("step-00000002", [])


def test_the_same_step_saved_again_replaces_the_first(tmp_path: Path) -> None:
    run_ranks(1, save_steps, tmp_path, [1, 2], 2)
    (tmp_path / "step-00000002" / "record.json").unlink()
    run_ranks(1, save_steps, tmp_path, [2], 2)
    assert run_ranks(1, newest, tmp_path)[0] == ("step-00000002", [])
    assert names_in(tmp_path) == ["step-00000001", "step-00000002"]


def _removed_in_steps(directory: Path) -> list[list[str]]:
    """What is there under a valid name at each file that retention deletes."""
    seen: list[list[str]] = []
    whole_unlink = os.unlink

    def unlink(*arguments: Any, **options: Any) -> None:
        seen.append([path.name for path in complete_checkpoints(directory)])
        whole_unlink(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        save_steps(directory, [1, 2], 1)
    return seen


def test_a_checkpoint_loses_its_name_before_its_files(tmp_path: Path) -> None:
    seen = run_ranks(1, _removed_in_steps, tmp_path)[0]
    assert len(seen) >= 4
    assert all(names == ["step-00000002"] for names in seen)


def _save_with_jumping_clock(directory: Path) -> tuple[str | None, list[str]]:
    engine = build_engine(tiny_config())
    now = iter(range(10**9, 0, -(10**6)))  # ever earlier
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(now)))
        patch.setattr(time, "time_ns", lambda: next(now) * 10**9)
        save(directory, engine, 1, 2)
        _backdate(directory, {"step-00000001": 2**33, "step-00000002": 0})
        save(directory, engine, 3)
        _backdate(directory, {"step-00000002": 2**33, "step-00000003": 0})
        return newest(directory)


def _backdate(directory: Path, seconds: dict[str, int]) -> None:
    for name, at in seconds.items():
        for path in [*(directory / name).iterdir(), directory / name]:
            os.utime(path, (at, at))


def test_neither_a_jumping_clock_nor_absurd_times_of_files_change_anything(tmp_path: Path) -> None:
    assert run_ranks(1, _save_with_jumping_clock, tmp_path)[0] == ("step-00000003", [])
    assert names_in(tmp_path) == ["step-00000002", "step-00000003"]


def test_the_best_is_kept_and_linked_until_a_better_one_is_valid(tmp_path: Path) -> None:
    """Each save ranks the steps by then; step 4 is the best of them and was never saved."""
    seen = run_ranks(2, _save_ranked, tmp_path)[0]
    assert seen == [
        (["step-00000001"], "step-00000001"),
        (["step-00000001", "step-00000002"], "step-00000001"),
        (["step-00000001", "step-00000003"], "step-00000001"),
        (["step-00000001", "step-00000005"], "step-00000001"),
        (["step-00000006"], "step-00000006"),
    ]
    assert locate(tmp_path / "best") == [tmp_path / "step-00000006"]


def _save_ranked(directory: Path) -> list[tuple[list[str], str]]:
    engine, seen = build_engine(tiny_config()), []
    for step, best_first in ((1, [1]), (2, [1, 2]), (3, [1]), (5, [4, 1]), (6, [6, 4, 1])):
        with Saver(directory, keep=1, in_flight=1) as saver:
            saver.save(engine.state(), record(step), b"tokenizer", best_first)
        dist.barrier()  # the first rank has removed what it removes
        seen.append(([path.name for path in complete_checkpoints(directory)], os.readlink(directory / "best")))
    return seen
