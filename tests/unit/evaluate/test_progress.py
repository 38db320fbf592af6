"""What an evaluation says of how far it is."""

import io

from pretrain.evaluate.progress import EvaluationProgress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _said(stream: io.StringIO, *calls: tuple[float, str, int, int]) -> str:
    """What is written when these come, each at its time in seconds."""
    now = [0.0]
    with EvaluationProgress(stream=stream, clock=lambda: now[0]) as progress:
        for seconds, what, done, total in calls:
            now[0] = seconds
            progress(what, done, total)
    return stream.getvalue()


def test_a_log_gets_a_line_for_each_task_and_shots_and_one_a_minute() -> None:
    calls = [(second, "piqa 8-shot", 10 * second, 10_042) for second in range(0, 130, 10)]
    lines = _said(io.StringIO(), *calls, (131, "piqa 16-shot", 0, 10_042), (132, "heldout", 0, 0)).splitlines()
    assert lines == [
        "piqa 8-shot: 10,042 documents",
        "piqa 8-shot: 600 of 10,042 documents, 15 min 44 s left",
        "piqa 8-shot: 1,200 of 10,042 documents, 14 min 44 s left",
        "piqa 16-shot: 10,042 documents",
        "heldout",
    ]


def test_the_time_left_is_that_of_documents_asked_now() -> None:
    """Documents known from an interrupted evaluation took no time."""
    said = _said(_Terminal(), (5, "cb 0-shot", 900, 1000), (15, "cb 0-shot", 950, 1000))
    assert "950 of 1,000 documents, 10 s left" in said


def test_a_terminal_has_one_line_that_is_ended() -> None:
    said = _said(_Terminal(), (0, "a 0-shot", 0, 9), (1, "a 0-shot", 4, 9), (2, "b 0-shot", 0, 9))
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert said.count("\r") >= 3
    assert "b 0-shot: 9 documents" in said


def test_nothing_reads_like_a_score() -> None:
    """A handful of documents is over before a second line: what stands above the table is no `0 of 63`."""
    assert _said(io.StringIO(), (0, "last_word 0-shot", 0, 63)) == "last_word 0-shot: 63 documents\n"


def test_ranks_that_do_not_report_say_nothing() -> None:
    stream = io.StringIO()
    with EvaluationProgress(False, stream) as progress:
        progress("a 0-shot", 0, 9)
    assert stream.getvalue() == ""
