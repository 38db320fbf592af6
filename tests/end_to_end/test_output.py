"""Commands whose output nobody reads any more, or whose terminal is closed."""

import os
import pty
import select
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from pretrain.process.signals import SIGNALS
from tests.end_to_end.test_train import TENSOR_2, assert_same_run, events, metrics, wait_for_steps
from tests.helpers import command
from tests.helpers.breadth import only


def _into(stdout: str) -> None:
    """Standard output of this process goes to the file or the named pipe."""
    os.dup2(os.open(stdout, os.O_WRONLY), 1)


def _on(terminal: str) -> None:
    """The terminal as the controlling one of this process, which leads its session, with all of its streams."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setsid()
    for descriptor in range(3):
        os.dup2(os.open(terminal, os.O_RDWR), descriptor)
    sys.stdin = os.fdopen(0)


def _first_line(pipe: Path) -> list[str]:
    """Does what `head -1` does: opens the pipe, reads a line, and closes it."""
    lines: list[str] = []

    def read() -> None:
        with pipe.open() as file:
            lines.append(file.readline())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join()
    return lines


@pytest.mark.slow
def test_training_into_a_closed_pipe_stops_resumes_and_is_the_same_run(
    config: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """`pretrain train ... | head -1`, twice."""
    run, pipe = config.parent / "run", tmp_path / "pipe"
    os.mkfifo(pipe)
    training = command.Command("train", config, *TENSOR_2, "track.every_steps=1", first=partial(_into, str(pipe)))
    assert "step 0 of 24" in _first_line(pipe)[0]
    wait_for_steps(training, run, 4)
    training.send_signal(signal.SIGTERM)
    assert (training.wait(60), training.stderr) == (75, "")
    stopped_at = metrics(run)[-1]["step"]
    assert stopped_at < 24, "it was stopped before the end"
    again = command.Command("train", config, *TENSOR_2, "track.every_steps=1", first=partial(_into, str(pipe)))
    assert f"step {stopped_at} of 24" in _first_line(pipe)[0]
    assert (again.wait(60), again.stderr) == (0, "")
    assert_same_run(run, uninterrupted, tolerance=0)


@pytest.mark.skipif(signal.SIGHUP not in SIGNALS, reason="these tests were started by nohup, which ignores SIGHUP")
@pytest.mark.parametrize("started", only(["train"], ["train", "launch local"]))
def test_a_closed_terminal_has_training_save_and_stop(started: str, config: Path) -> None:
    run = config.parent / "run"
    master, slave = pty.openpty()
    training = command.Command(
        *started.split(), config, "train.steps=100000", *TENSOR_2, first=partial(_on, os.ttyname(slave))
    )
    closes = threading.Event()
    window = threading.Thread(target=_show_until, args=(closes, master), daemon=True)
    window.start()
    wait_for_steps(training, run, 3)
    closes.set()
    window.join()
    os.close(slave)  # only now, as a terminal that nothing has opened cannot be read
    assert training.wait(60) == 75
    assert events(run)[-1] == "stopped"
    assert (run / "checkpoints" / f"step-{metrics(run)[-1]['step']:08d}").is_dir()


def _show_until(closes: threading.Event, master: int) -> None:
    """A terminal's window."""
    while not closes.is_set():
        if select.select([master], [], [], 0.05)[0]:
            os.read(master, 4096)
    os.close(master)


@pytest.mark.parametrize(
    "arguments",
    [("generate", "RUN", "--prompt", "The", "--nproc", "2"), ("eval", "RUN", "--tasks", "heldout", "--out", "REPORT")],
)
def test_a_result_that_cannot_be_printed_is_status_1_with_a_sentence_after_the_work(
    arguments: tuple[str, ...], uninterrupted: Path, tmp_path: Path
) -> None:
    there = {"RUN": uninterrupted, "REPORT": tmp_path / "report"}
    done = command.Command(*(there.get(one, one) for one in arguments), first=partial(_into, "/dev/full"))
    said = "pretrain: standard output cannot be written (No space left on device): what was printed is lost\n"
    assert (done.wait(60), done.stderr) == (1, said)
    assert (tmp_path / "report" / "report.html").exists() == (arguments[0] == "eval")


def test_a_prompt_that_is_no_text_is_refused(uninterrupted: Path) -> None:
    done = command.run("generate", uninterrupted, "--prompt", b"a\xff".decode(errors="surrogateescape"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--prompt: 'a\\udcff' is not text in UTF-8" in done.stderr
