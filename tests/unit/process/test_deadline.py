"""A deadline's messages, by a clock that the test sets."""

from types import SimpleNamespace

import pytest

from pretrain.process import deadline
from pretrain.process.deadline import Deadline


def test_messages_come_after_ever_longer_pauses_up_to_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock.now))
    told, silent = Deadline(200.0), Deadline(200.0, verbose=False)
    for second in range(200):
        clock.now = 1000.0 + second
        told.report(lambda second=second: str(second))  # type: ignore[misc]
        silent.report(lambda: "never")
        assert (told.remaining_s, told.expired) == (200 - second, False)
    assert capsys.readouterr().err.splitlines() == [f"pretrain: {second}" for second in (10, 30, 70, 130, 190)]
    clock.now = 1200.0
    assert told.expired


def test_a_wait_ends_with_the_next_message_or_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock.now))
    short, long = Deadline(4.0), Deadline(100.0)
    assert (short.next_wait_s, long.next_wait_s) == (4.0, 10.0)
    clock.now = 9.999
    assert (short.next_wait_s, short.remaining_s, long.next_wait_s) == (0.01, 0.0, 0.01)
