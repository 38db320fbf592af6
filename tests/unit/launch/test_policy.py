"""What is done when an attempt has ended."""

import pytest

from launch.attempts import Attempt
from launch.policy import decide
from launch.run_progress import HUNG
from pretrain.errors import MiscomputedError, RunError
from pretrain.process.agreement import RendezvousError
from pretrain.process.peers import LostPeersError

NAN = "RunError: step 12: the loss or gradient is not finite"
LOST = "LostPeersError: rank 0 lost its peers at step 12"


def attempt(status: int, step: int = 12, saved: int | None = 10, reason: str | None = None) -> Attempt:
    return Attempt(
        began="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
        status=status,
        step=step,
        saved=saved,
        reason=reason,
    )


@pytest.mark.parametrize(
    ("status", "then", "own"), [(0, "over", 0), (2, "over", 2), (75, "stopped", 0), (1, "again", 0), (137, "again", 0)]
)
def test_status_decides(status: int, then: str, own: int) -> None:
    decision = decide([attempt(status)], restarts=3)
    assert (decision.next, decision.status) == (then, own)


def test_gives_up_after_so_many_restarts_without_a_new_checkpoint() -> None:
    history = [attempt(137, step=step) for step in (11, 12, 13)]
    assert decide(history, restarts=3).next == "again"
    decision = decide([*history, attempt(137, step=14)], restarts=3)
    assert (decision.next, decision.status) == ("over", 1)
    assert "4 times without a new checkpoint" in decision.why


def test_a_new_checkpoint_refills_the_budget() -> None:
    history = [attempt(137, step=step, saved=saved) for step, saved in ((11, 10), (12, 10), (13, 10), (24, 20))]
    decision = decide(history, restarts=3)
    assert decision.next == "again"
    assert "restart 1 of 3, from step 20" in decision.why


def test_the_first_start_counts_when_there_is_no_checkpoint() -> None:
    history = [attempt(1, step=0, saved=None, reason=None)] * 2
    assert decide(history, restarts=1).next == "over"
    assert decide(history, restarts=2).why == (
        "failed (no error was reported; exit status 1); restart 2 of 2, from the beginning"
    )


def test_none_are_allowed() -> None:
    decision = decide([attempt(137)], restarts=0)
    assert (decision.next, decision.status) == ("over", 1)
    assert "failed once without a new checkpoint, the last time at step 12: no error was reported; exit status 137" in (
        decision.why
    )


@pytest.mark.parametrize(("status", "said"), [(137, "137, signal 9"), (233, "233"), (160, "160"), (1, "1")])
def test_a_signal_is_named_where_the_status_is_of_one(status: int, said: str) -> None:
    """Python says which signals exist: 105 does not, and 32 is the C library's."""
    assert decide([attempt(status)], restarts=0).why.endswith(f"no error was reported; exit status {said}")


def test_the_same_failure_twice_at_the_same_step_is_of_data_or_numbers() -> None:
    assert decide([attempt(1, reason=NAN)], restarts=9).next == "again"
    decision = decide([attempt(1, reason=NAN)] * 2, restarts=9)
    assert (decision.next, decision.status) == ("over", 1)
    assert "problem of data or numbers" in decision.why
    assert NAN in decision.why


def test_the_same_failure_twice_before_the_first_step_is_of_no_documents() -> None:
    decision = decide([attempt(1, step=0, saved=None, reason="RunError: n1 is slow")] * 2, restarts=9)
    assert decision.why == (
        "failed twice in the same way before its first step, so a restart does not help: RunError: n1 is slow"
    )


_OF_MACHINES = [error.__name__ for error in (LostPeersError, RendezvousError, MiscomputedError)] + [HUNG]


@pytest.mark.parametrize("name", _OF_MACHINES)
def test_what_a_machine_causes_is_tried_again_however_often(name: str) -> None:
    """A run reports an error by the name of its class."""
    assert decide([attempt(1, reason=f"{name}: step 13: rank 1")] * 3, restarts=9).next == "again"
    named_later = f"{RunError.__name__}: the cause was {name}: rank 1"
    assert decide([attempt(1, reason=named_later)] * 2, restarts=9).next == "over"


def test_what_reported_nothing_is_tried_again() -> None:
    assert decide([attempt(1, reason=None)] * 2, restarts=9).next == "again"


@pytest.mark.parametrize(("between", "then", "restart"), [((), "over", None), ((75,), "again", 1), ((0,), "again", 1)])
def test_failures_before_a_stop_are_none_in_a_row(between: tuple[int, ...], then: str, restart: int | None) -> None:
    """A requeued job keeps its attempts. What ended between two failures, at the same step, begins the count again."""
    history = [attempt(1, reason=NAN), *(attempt(status) for status in between), attempt(1, reason=NAN)]
    decision = decide(history, restarts=9)
    assert decision.next == then
    assert restart is None or f"restart {restart} of 9" in decision.why
    lost = [attempt(1, reason=LOST), *(attempt(status, reason=LOST) for status in between), attempt(1, reason=LOST)]
    assert f"restart {restart or 2} of 9" in decide(lost, restarts=9).why


def test_advice_to_run_it_again_is_none_for_who_reads_that_it_is() -> None:
    for advice in ("run the same command again to resume", "the same command resumes"):
        assert f"({LOST}); restart 1 of 3" in decide([attempt(1, reason=f"{LOST}; {advice}")], restarts=3).why
        assert decide([attempt(1, reason=f"{LOST}; {advice}")], restarts=0).why.endswith(LOST)
    assert f"({LOST}; rank 1 said so)" in decide([attempt(1, reason=f"{LOST}; rank 1 said so")], restarts=3).why


def test_at_another_step_or_with_other_words_it_is_not() -> None:
    assert decide([attempt(1, step=12, reason=NAN), attempt(1, step=13, reason=NAN)], restarts=9).next == "again"
    assert decide([attempt(1, reason=NAN), attempt(1, reason="OSError: no")], restarts=9).next == "again"


def test_pauses_grow_to_a_minute() -> None:
    pauses = [decide([attempt(137)] * failures, restarts=20).pause_s for failures in range(1, 10)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_new_checkpoint_makes_pauses_short_again() -> None:
    history = [
        attempt(137, step=step, saved=saved) for step, saved in ((11, 10), (12, 10), (13, 10), (24, 20), (25, 20))
    ]
    assert [decide(history[:count], restarts=9).pause_s for count in range(1, 6)] == [1, 2, 4, 1, 2]
