"""When a save that failed is tried again, and when too much is unsaved."""

import pytest

from pretrain.checkpoint.unsaved import Unsaved
from pretrain.config.checkpoint import Checkpoint
from pretrain.process.urgency import Urgency


def test_as_long_as_saves_succeed_nothing_is_asked_for() -> None:
    unsaved = Unsaved(0, limit_steps=10)
    assert unsaved.urgency(1000, now_s=1e9, idle=True) is Urgency.NONE
    unsaved.saved(1000)
    assert unsaved.urgency(2000, now_s=1e9, idle=True) is Urgency.NONE


def test_tries_come_ever_later_and_at_most_five_minutes_apart() -> None:
    unsaved, now_s, waits = Unsaved(), 100.0, []
    for step in range(1, 9):
        unsaved.failed(step, "no space left", now_s)
        began_s = now_s
        while unsaved.urgency(step, now_s, idle=True) is Urgency.NONE:
            now_s += 1.0
        waits.append(now_s - began_s)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_nothing_more_is_asked_for_while_a_try_is_being_written() -> None:
    unsaved = Unsaved()
    unsaved.failed(8, "no space left", 0.0)
    assert unsaved.urgency(9, 1000.0, idle=False) is Urgency.NONE
    assert unsaved.urgency(9, 1000.0, idle=True) is Urgency.SAVE


def test_a_save_that_succeeds_ends_the_trouble() -> None:
    unsaved = Unsaved(0, limit_steps=10)
    unsaved.failed(8, "no space left", 0.0)
    unsaved.saved(9)
    assert unsaved.urgency(500, 1e9, idle=True) is Urgency.NONE
    failure = unsaved.failed(508, "no space left", 1e9)
    assert (failure.failures, failure.unsaved_steps, failure.saved_step) == (1, 499, 9)


@pytest.mark.parametrize(("limit", "step"), [(0, 100), (1, 101), (30, 130)])
def test_the_limit_counts_steps_since_the_newest_checkpoint(limit: int, step: int) -> None:
    unsaved = Unsaved(100, limit)
    unsaved.failed(100, "no space left", 0.0)
    assert unsaved.urgency(step, 0.0, idle=False) is Urgency.LAST_TRY
    assert limit == 0 or unsaved.urgency(step - 1, 0.0, idle=False) is Urgency.NONE


def test_a_failure_says_what_is_at_stake() -> None:
    unsaved = Unsaved(800, 4000)
    unsaved.failed(1000, "saving runs/x/checkpoints/step-00001000 failed: no space left", 0.0)
    failure = unsaved.failed(1200, "saving runs/x/checkpoints/step-00001200 failed: no space left", 60.0)
    assert failure.sentence == (
        "saving runs/x/checkpoints/step-00001200 failed: no space left; 400 steps since step 800 are not saved; 4,000 "
        "of them end the run"
    )
    assert failure.failures == 2


def test_without_a_limit_of_its_own_a_run_has_ten_saves() -> None:
    assert Checkpoint(every_steps=50).limit_steps == 500
    assert Checkpoint(every_steps=50, unsaved_steps=0).limit_steps == 0
    assert Checkpoint().limit_steps is None
