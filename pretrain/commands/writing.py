"""`pretrain generate`: checkpoint -> engine -> prompts -> texts, on every rank."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint.files import TOKENIZER
from pretrain.commands.conversation import converse
from pretrain.commands.printing import show, write_lines
from pretrain.config.run_config import RunConfig
from pretrain.engine.collective import gather
from pretrain.errors import ConfigError
from pretrain.evaluate.decoding.base import Decoding, Sampling
from pretrain.evaluate.decoding.decode import decode
from pretrain.evaluate.decoding.fill import fill, masked_input
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.decoding.stream import until
from pretrain.evaluate.opening import build_scorer


@dataclass(frozen=True)
class GenerateRequest:
    """A request of `pretrain generate`: how to decode, and where to write."""

    how: Decoding
    longest: int | None
    """tokens of a text; None: the usual number, or what there is room for"""
    stops: list[str]
    out: Path | None
    interactive: bool


def write_texts(config: RunConfig, checkpoint: Path, given: list[str] | None, generation: GenerateRequest) -> None:
    """Prints texts of the prompts `given` (None: of what is typed, or of standard input as a whole), or writes them to
    `generation.out`. Raises ConfigError for a prompt that the model cannot read, before the weights are loaded."""
    prompts = Prompts(config, load_tokenizer(checkpoint / TOKENIZER))
    if generation.interactive:
        engine = build_scorer(config, checkpoint)
        assert isinstance(generation.how, Sampling), "a beam has nothing to show until its end"
        converse(engine, config, prompts, generation.how, generation.longest, generation.stops)
        return
    texts = given if given is not None else _standard_input()
    called = [f"prompt {number}" for number in range(1, len(texts) + 1)]
    if config.model.has_decoder:
        requests = [prompts.request(text, generation.longest, name) for text, name in zip(texts, called, strict=True)]
        engine = build_scorer(config, checkpoint)
        found = decode(engine, requests, generation.how, prompts.stops(generation.stops))
        records = [
            _record(
                text, until(prompts.said(request, one.tokens), generation.stops), prompts.filled(request, one.tokens)
            )
            | {"tokens": len(one.tokens), "log_probability": one.log_probability, "ended": one.ended}
            for text, request, made in zip(texts, requests, found, strict=True)
            for one in made
        ]
    else:
        positions = config.model.sequence_length
        inputs = [masked_input(prompts, text, positions, name) for text, name in zip(texts, called, strict=True)]
        engine = build_scorer(config, checkpoint)
        records = [
            _record(text, prompts.decode(ids), None)
            for text, ids in zip(texts, fill(engine, prompts, inputs), strict=True)
        ]
    if not engine.is_reporter:
        return
    if generation.out is None:
        show(_printed(records))
        return
    write_lines(generation.out, [json.dumps(record, ensure_ascii=False) for record in records])
    print(f"{len(records)} texts of {len(texts)} prompts: {generation.out}")


def _record(prompt: str, text: str, filled: str | None) -> dict[str, Any]:
    return {"prompt": prompt, "text": text} | ({} if filled is None else {"filled": filled})


def _printed(records: list[dict[str, Any]]) -> Iterator[str]:
    """A prompt, and below it each of its texts."""
    before = None
    for record in records:
        if record["prompt"] != before:
            yield f"[prompt] {record['prompt']}"
        before = record["prompt"]
        yield f"[text] {record.get('filled', record['text'])}"


def _standard_input() -> list[str]:
    """All that is piped in is one prompt, less the last newline. Raises ConfigError, on all ranks, if it is none."""
    read = sys.stdin.buffer.read() if dist.get_rank() == 0 else b""
    content = gather(read)[0].removesuffix(b"\n")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("standard input is not text in UTF-8: give --prompt TEXT or pipe a text in") from None
    if not text:
        raise ConfigError("standard input is empty, which is no prompt: give --prompt TEXT or pipe a text in")
    return [text]
