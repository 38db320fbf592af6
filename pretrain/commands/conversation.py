"""`pretrain generate --interactive`: prompts typed one by one, each answered by text as it comes. Of a run with a chat
template they are turns of one conversation. Ctrl-C ends a text, Ctrl-D all. The first rank reads and prints; the others
do as it does."""

import os
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from types import FrameType

from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.commands.arguments import utf8
from pretrain.config.run_config import RunConfig
from pretrain.data.chat_settings import chat_settings
from pretrain.data.chat_source import chat_source
from pretrain.engine.base import Engine
from pretrain.engine.collective import file_group, gather
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import DecodeRequest, Sampling
from pretrain.evaluate.decoding.chat import Chat
from pretrain.evaluate.decoding.fill import fill, masked_input
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.decoding.sampling import sample
from pretrain.evaluate.decoding.stream import TextStream
from pretrain.evaluate.generate import GenerateRequest
from pretrain.evaluate.opening import build_scorer, source_tokenizer_of
from pretrain.process.streams import is_lost
from pretrain.run_dir.paths import TOKENIZER, run_of

_PATIENCE = timedelta(days=30)  # of the other ranks, with whoever types


def converse(config: RunConfig, checkpoint: Path, generation: GenerateRequest, raw: bool) -> None:
    """Answers prompts until the input ends. A prompt that does not fit is reported, and the next one is read. Of a
    model that continues text, and whose run has a chat template, prompts are turns of a conversation unless they are
    `raw`. Collective."""
    tokenizer = load_tokenizer(checkpoint / TOKENIZER)
    prompts = Prompts(config, tokenizer, source_tokenizer_of(config, checkpoint))
    template = run_of(checkpoint).chat_template
    engine = build_scorer(config, checkpoint)
    sampling, stops = generation.decoding, generation.stops
    assert isinstance(sampling, Sampling), "a beam has nothing to show until its end"
    group = file_group(config.health.timeout_s, _PATIENCE)
    chat = None
    if not raw and prompts.continues and config.model.is_causal and template.is_file():
        settings = chat_settings(config.objective, run_of(checkpoint))
        today = gather(date.today(), group)[0]
        variables = settings.template_variables
        if (source := chat_source(run_of(checkpoint).source_model, tokenizer)) is not None:
            source.check(tokenizer)
            variables = {**source.names, **variables}
        settings = settings.model_copy(update={"date": settings.date or today, "template_variables": variables})
        chat = Chat(settings.template(template, tokenizer), tokenizer, config.model.context_length)
    with _terminal(engine.is_reporter) as keyboard:
        for turn in count():
            prompt = gather(keyboard.line() if engine.is_reporter else None, group)[0]
            if prompt is None:
                return
            try:
                if chat is not None:
                    request = chat.request(prompt, generation.max_tokens, f"{turn}/{prompt}")
                    if chat.num_left_out:
                        _show(engine, f"(left out, as it no longer fits: {_turns(chat.num_left_out)})\n")
                    text = answer(
                        engine,
                        prompts,
                        request,
                        sampling=sampling,
                        stops=stops,
                        keyboard=keyboard,
                        special=chat.special,
                    )
                    chat.answered(text)
                elif config.model.has_decoder:
                    request = prompts.request(prompt, generation.max_tokens)
                    # The same prompt again is another draw.
                    request = DecodeRequest(request.reads, request.start, request.longest, f"{turn}/{prompt}")
                    answer(engine, prompts, request, sampling=sampling, stops=stops, keyboard=keyboard)
                else:
                    ids = masked_input(prompts, prompt, config.model.sequence_length)
                    _show(engine, f"{prompts.decode(fill(engine, prompts, [ids])[0])}\n")
            except ConfigError as error:  # every rank meets it
                _show(engine, f"{error}\n")


def answer(
    engine: Engine,
    prompts: Prompts,
    request: DecodeRequest,
    *,
    sampling: Sampling,
    stops: Sequence[str],
    keyboard: "Keyboard",
    special: frozenset[int] = frozenset(),
) -> str:
    """Shows the text of a request as it comes, until it is over or Ctrl-C is pressed, and returns it. Ids that are
    `special` end it, too, and are not shown. Collective."""

    def decode(ids: Sequence[int]) -> str:
        return prompts.decode([index for index in ids if index not in special])

    stream, shown = TextStream(decode, prompts.context(request), stops), list[str]()

    def show(text: str) -> None:
        shown.append(text)
        _show(engine, text)

    def watch(texts: Sequence[Sequence[int]]) -> bool:
        show(stream.add(texts[0][-1]))
        return not engine.any(keyboard.interrupted)

    keyboard.interrupted = False
    ends = prompts.stops(stops)
    sample(engine, [request], sampling, replace(ends, ids=ends.ids | special), watch)
    show(stream.end())
    _show(engine, "\n")
    return "".join(shown)


def _turns(count: int) -> str:
    return "the oldest question and its answer" if count == 1 else f"the {count} oldest questions and their answers"


def _show(engine: Engine, text: str) -> None:
    if engine.is_reporter and text:
        print(text, end="", flush=True)


class Keyboard:
    """Lines from the keyboard, and whether Ctrl-C was pressed since the last one."""

    def __init__(self) -> None:
        self.interrupted = self._reading = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        if self._reading:
            raise KeyboardInterrupt

    def line(self) -> str | None:
        """The next one that is not empty; None at the end of the input, or where nobody sees the answers."""
        while not is_lost():
            self._reading = True
            try:
                if typed := input("> "):
                    return utf8(typed)
            except ArgumentTypeError as error:
                print(error)
            except EOFError:
                print()
                return None
            except KeyboardInterrupt:  # as a shell takes it: this line is not meant
                print()
            finally:
                self._reading = False
        return None


@contextmanager
def _terminal(reads: bool) -> Iterator[Keyboard]:
    """The keyboard, of the rank that `reads`. On a terminal only the process group in the foreground may read, which is
    the launcher's: the rank takes its place, and so Ctrl-C comes here too."""
    keyboard = Keyboard()
    if not reads:
        yield keyboard
        return
    signal.signal(signal.SIGINT, keyboard.receive)
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # invalid bytes are reported
    if not sys.stdin.isatty():
        yield keyboard
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # input() then edits its lines
    terminal = sys.stdin.fileno()
    before = os.tcgetpgrp(terminal)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # sent to whoever moves it from the background
    os.tcsetpgrp(terminal, os.getpgrp())
    try:
        yield keyboard
    finally:
        os.tcsetpgrp(terminal, before)
