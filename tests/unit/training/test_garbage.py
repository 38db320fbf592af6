"""Python's garbage collector between steps, not in them."""

import gc

import pytest

from pretrain.training.garbage import EVERY_STEPS, collect_when_due, no_collection_within_steps


class _Cycle:
    alive = 0

    def __init__(self) -> None:
        self.itself = self
        _Cycle.alive += 1

    def __del__(self) -> None:
        _Cycle.alive -= 1


def test_garbage_of_steps_is_collected_every_so_many_of_them_and_not_between() -> None:
    with no_collection_within_steps():
        assert not gc.isenabled()
        for step in range(1, 3 * EVERY_STEPS):
            _Cycle()
            collect_when_due(step)
            assert _Cycle.alive == step % EVERY_STEPS
    assert gc.isenabled()
    gc.collect()
    assert _Cycle.alive == 0


def _fail_within_steps() -> None:
    with no_collection_within_steps():
        assert gc.get_freeze_count() > 0
        raise RuntimeError


def test_after_an_error_it_collects_again_and_what_was_there_before_too() -> None:
    before = [_Cycle()]
    with pytest.raises(RuntimeError):
        _fail_within_steps()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    before.clear()
    gc.collect()
    assert _Cycle.alive == 0


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_collection_within_steps():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
