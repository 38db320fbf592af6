"""What a terminal shows, and what a log holds."""

import io
import re
from dataclasses import replace
from typing import TextIO

import pytest

from pretrain.observe.progress import Progress, duration
from tests.unit.observe.conftest import STEP


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(total_steps: int, end_tokens: int, every_steps: int, stream: TextIO) -> Progress:
    progress = Progress(every_steps, stream)
    progress.expect(total_steps, end_tokens)
    return progress


def screen(written: str) -> list[str]:
    """The lines a terminal shows after `written`: a carriage return goes back, ESC[K clears to the end."""
    lines = [""]
    column = 0
    for piece in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+", written):
        if piece == "\n":
            lines.append("")
            column = 0
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + piece + lines[-1][column + len(piece) :]
            column += len(piece)
    return lines


@pytest.fixture(autouse=True)
def wide_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


def train(progress: Progress, steps: int) -> None:
    for step in range(1, steps + 1):
        progress.step(replace(STEP, step=step, tokens=1000 * step, loss=4.0 - step / 10))


def test_a_terminal_has_one_line_with_the_newest_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.common.live_line.INTERVAL_S", 0)
    terminal = Terminal()
    progress = shown(10, 10_000, 1, terminal)
    train(progress, 4)
    assert screen(terminal.getvalue()) == [
        "step  4/10  loss 3.6000  rate 0.0006  gradient norm 1.25  1,000 tokens/s  6 s left"
    ]


def test_a_shorter_line_leaves_nothing_of_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.common.live_line.INTERVAL_S", 0)
    terminal = Terminal()
    progress = shown(3, 3_000_000, 1, terminal)
    progress.step(replace(STEP, step=1, tokens_per_second=123_456_789.0, mfu=0.5))
    progress.step(replace(STEP, step=2, tokens_per_second=1.0, tokens=3_000_000))
    assert screen(terminal.getvalue()) == [
        "step 2/3  loss 3.5000  rate 0.0006  gradient norm 1.25  1 tokens/s  0 s left"
    ]


def test_a_narrow_terminal_gets_a_line_that_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    train(shown(10, 10_000, 1, terminal), 1)
    assert screen(terminal.getvalue()) == ["step  1/10"]
    monkeypatch.setenv("COLUMNS", "8")
    train(shown(10, 10_000, 1, terminal := Terminal()), 1)
    assert screen(terminal.getvalue()) == ["step  1"]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            160,
            "step  12,000/600,000  loss 3.9000 (held-out 3.2100)  rate 0.0006  gradient norm 1.25  123,456 tokens/s  "
            "MFU 41.2%  61.2 GB GPU",
        ),
        (100, "step  12,000/600,000  loss 3.9000  lr 6.0e-04  norm 1.2  123k tok/s  MFU 41%  61.2 GB  5d14h left"),
        (80, "step  12,000/600,000  loss 3.9000  lr 6.0e-04  123k tok/s  MFU 41%  5d14h left"),
        (60, "step  12,000/600,000  loss 3.9000  123k tok/s  5d14h left"),
    ],
)
def test_what_is_needed_least_gives_way(columns: int, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = shown(600_000, 60_000_000_000, 1, terminal := Terminal())
    progress.heldout(3.21)
    metrics = replace(STEP, step=12_000, tokens=1_200_000, loss=3.9, tokens_per_second=123_456.0, mfu=0.412)
    progress.step(replace(metrics, device_peak_bytes=61_200_000_000, host_peak_bytes=4_000_000_000))
    found = screen(terminal.getvalue())[-1]
    assert found[: len(line)] == line
    assert len(found) < columns


def test_without_a_gpu_the_host_s_memory_is_shown() -> None:
    shown(1, 1_000, 1, log := io.StringIO()).step(replace(STEP, host_peak_bytes=1_234_000_000))
    assert "  1.23 GB host  " in log.getvalue()


def test_a_terminal_has_colours_unless_its_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(stream: TextIO) -> str:
        train(progress := shown(10, 10_000, 1, stream), 1)
        progress.say("warning: something", "warning")
        assert isinstance(stream, io.StringIO)
        return stream.getvalue()

    assert "\x1b[1m" not in written(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    coloured = written(Terminal())
    assert "\x1b[1mstep  1/10\x1b[0m" in coloured
    assert "\x1b[33mwarning: something\x1b[0m" in coloured
    assert "\x1b" not in written(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[1m" not in written(Terminal())


def test_a_terminal_is_not_flooded_but_sees_the_last_step() -> None:
    terminal = Terminal()
    progress = shown(2000, 2_000_000, 1, terminal)
    train(progress, 2000)
    progress.close()
    assert terminal.getvalue().count("\r") < 200
    assert screen(terminal.getvalue())[0].startswith("step 2,000/2,000")
    assert terminal.getvalue().endswith("\n")


def test_words_stay_above_the_live_line() -> None:
    terminal = Terminal()
    progress = shown(10, 10_000, 1, terminal)
    train(progress, 1)
    progress.say("warning: something")
    assert screen(terminal.getvalue()) == [
        "warning: something",
        "step  1/10  loss 3.9000  rate 0.0006  gradient norm 1.25  1,000 tokens/s  9 s left",
    ]


def test_a_log_gets_plain_lines_every_so_many_steps_and_at_the_end() -> None:
    log = io.StringIO()
    progress = shown(10, 10_000, 4, log)
    train(progress, 10)
    progress.close()
    assert [line.split("  loss")[0] for line in log.getvalue().splitlines()] == [
        "step  4/10",
        "step  8/10",
        "step 10/10",
    ]
    assert not re.search(r"[\r\x1b]", log.getvalue())


def test_heldout_loss_is_shown_once_there_is_one() -> None:
    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        progress = shown(3, 3_000, 1, stream)
        train(progress, 2)
        assert "held-out" not in stream.getvalue()
        progress.heldout(3.21)
        progress.step(replace(STEP, step=3, tokens=3000))
        progress.close()
    assert log.getvalue().splitlines()[2] == "held-out loss 3.2100 after step 2"
    assert log.getvalue().splitlines()[3].startswith("step 3/3  loss 3.5000 (held-out 3.2100)")
    assert screen(terminal.getvalue())[0] == "held-out loss 3.2100 after step 2"
    assert "loss 3.5000 (held-out 3.2100)" in screen(terminal.getvalue())[1]


def test_heldout_loss_after_the_last_step_is_shown_too() -> None:
    terminal = Terminal()
    progress = shown(1, 1_000, 1, terminal)
    train(progress, 1)
    progress.heldout(3.21)
    assert "(held-out 3.2100)" in screen(terminal.getvalue())[1]


def test_the_time_left_follows_the_tokens_left_and_recent_speed() -> None:
    log = io.StringIO()
    progress = shown(1000, 1_000_000, 1, log)
    for step in range(1, 101):  # a slow first step is forgotten
        took_s = 1000.0 if step == 1 else 1.0
        progress.step(replace(STEP, step=step, tokens=1000 * step, step_seconds=took_s, tokens_per_second=10.0))
    assert log.getvalue().splitlines()[-1].endswith("15 min 00 s left")  # 900,000 tokens at 1000 a second


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (25_920, "7 h 12 min"),
        (273_600, "3 d 04 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
