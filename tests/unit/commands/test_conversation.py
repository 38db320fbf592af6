"""An answer of `pretrain generate --interactive`."""

import builtins
import signal
from collections.abc import Sequence

import numpy as np
import pytest

from data_pipeline.tokenizers.byte import ByteTokenizer
from pretrain.commands import conversation
from pretrain.commands.conversation import Keyboard, answer
from pretrain.evaluate.decoding.base import Sampling
from pretrain.evaluate.decoding.prompts import Prompts
from tests.helpers.tiny import tiny_config

TEXT = "né, so it goes"


class Recites:
    """The part of an engine that an answer uses: it writes TEXT, byte by byte, and presses Ctrl-C after some."""

    is_reporter = True

    def __init__(self, keyboard: Keyboard, interrupted_after: int) -> None:
        self.ids = ByteTokenizer().encode(TEXT)
        self.read, self.keyboard, self.interrupted_after = 0, keyboard, interrupted_after

    def prefill(self, inputs: Sequence[Sequence[int]]) -> None:
        pass

    def next_tokens(self, held: None, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        says = np.full((1, ByteTokenizer.vocabulary_size), -9, np.float32)
        says[0, self.ids[self.read]] = 0
        self.read += 1
        if self.read == self.interrupted_after:
            self.keyboard.receive(signal.SIGINT, None)
        return says

    def any(self, flag: bool) -> bool:
        return flag


@pytest.mark.parametrize(("interrupted_after", "shown"), [(99, TEXT), (2, "n\ufffd"), (3, "né"), (5, "né, ")])
def test_it_is_shown_as_it_comes_until_ctrl_c(
    interrupted_after: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard = Keyboard()
    engine, prompts = Recites(keyboard, interrupted_after), Prompts(tiny_config(), ByteTokenizer())
    request = prompts.request("so", len(engine.ids))
    answer(engine, prompts, request, sampling=Sampling(), stops=[], keyboard=keyboard)  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"{shown}\n"
    assert engine.read == min(interrupted_after, len(engine.ids))


def test_a_line_that_is_no_text_is_said_so_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["", "a\udcff", "né"])
    monkeypatch.setattr(builtins, "input", lambda _: next(typed))
    assert Keyboard().line() == "né"
    assert capsys.readouterr().out == "'a\\udcff' is not text in UTF-8\n"


def test_no_line_is_read_where_nobody_sees_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "is_lost", lambda: True)
    assert Keyboard().line() is None
