"""Who writes to a run directory: one run, also where the directory was deleted under it, or cannot be locked."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from data_pipeline.common.locks import try_lock
from pretrain.checkpoint import lock as module
from pretrain.checkpoint.lock import Claim, claim
from pretrain.config.run import Run
from pretrain.errors import ConfigError, RunError


def claimed(run_dir: Path) -> Claim:
    run_dir.mkdir()
    lock = try_lock(run_dir / "lock")
    assert lock is not None
    return Claim(run_dir, run_dir / "lock", lock)


def test_a_claim_is_renewed_where_the_directory_was_deleted(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with claimed(run_dir) as claim:
        claim.renew()
        shutil.rmtree(run_dir)
        claim.renew()
        assert try_lock(run_dir / "lock") is None, "others are kept out again"
        claim.renew()
    assert try_lock(run_dir / "lock") is not None


def test_a_directory_that_another_run_has_by_now_is_left_to_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with claimed(run_dir) as claim:
        shutil.rmtree(run_dir)
        with (
            claimed(run_dir),
            pytest.raises(RunError, match="was deleted under this run, and another run writes to it"),
        ):
            claim.renew()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_and_another_may_have_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, other, flock = tmp_path / "run", tmp_path / "other", fcntl.flock

    def of_file_system(file: int, operation: int) -> None:
        if os.path.samestat(os.fstat(file.fileno()), (run_dir / "lock").stat()):  # type: ignore[attr-defined]
            raise OSError(number, os.strerror(number))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", of_file_system)
    monkeypatch.setattr(module, "gather", lambda value: [value])
    with pytest.raises(ConfigError, match=r"run/lock: its file system has no locks: .*: set run\.lock to a file"):
        claim(Run(dir=str(run_dir)), leader=True)
    run = Run(dir=str(run_dir), lock=str(other))
    with pytest.raises(ConfigError, match=r"run\.lock=.*missing/lock cannot be written"):
        claim(run.model_copy(update={"lock": str(tmp_path / "missing" / "lock")}), leader=True)
    held = claim(run, leader=True)
    assert held is not None
    with held:
        with pytest.raises(ConfigError, match="another run is writing"):
            claim(run, leader=True)
        held.renew()
