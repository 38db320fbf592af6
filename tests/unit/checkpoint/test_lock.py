"""A run directory that was deleted under the run that has it."""

import shutil
from pathlib import Path

import pytest

from data_pipeline.common.locks import try_lock
from pretrain.checkpoint.lock import Claim
from pretrain.errors import RunError


def claimed(run_dir: Path) -> Claim:
    run_dir.mkdir()
    lock = try_lock(run_dir / "lock")
    assert lock is not None
    return Claim(run_dir, lock)


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
