"""What is done when an attempt has ended."""

import pytest

from launch.attempts import Attempt
from launch.policy import decide

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
    assert "from the beginning" in decide(history, restarts=2).why


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


@pytest.mark.parametrize("reason", [LOST, "HungError: step 13: rank 1 is missing", None])
def test_a_lost_machine_at_the_same_step_is_not(reason: str | None) -> None:
    assert decide([attempt(1, reason=reason)] * 2, restarts=9).next == "again"


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
