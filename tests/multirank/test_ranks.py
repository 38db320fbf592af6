"""What a developer reads of ranks that fail."""

import time

import pytest
import torch
import torch.distributed as dist

from tests.helpers.ranks import run_ranks


def _rank_1_fails() -> None:
    if dist.get_rank() == 1:
        raise ValueError("the reason")
    dist.all_reduce(torch.zeros(1))


def _rank_1_hangs() -> None:
    if dist.get_rank() == 1:
        time.sleep(60)


def test_the_rank_that_failed_by_itself_speaks_first() -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        run_ranks(3, _rank_1_fails)
    first, second, *_ = str(failure.value).splitlines()
    assert (first, second) == ("rank 1 of 3 failed:", "Traceback (most recent call last):")
    assert "ValueError: the reason" in str(failure.value)


def test_ranks_that_hang_are_named_at_the_time_limit() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"ranks \[1\] did not finish within 5 s"):
        run_ranks(3, _rank_1_hangs, timeout_s=5)
