"""Prompts -> texts of a checkpoint, on every rank: what `pretrain generate` writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.config.run_config import RunConfig
from pretrain.evaluate.decoding.base import Decoding
from pretrain.evaluate.decoding.decode import decode
from pretrain.evaluate.decoding.fill import fill, masked_input
from pretrain.evaluate.decoding.prompts import Prompts
from pretrain.evaluate.decoding.stream import until
from pretrain.evaluate.opening import build_scorer, source_tokenizer_of
from pretrain.run_dir.paths import TOKENIZER


@dataclass(frozen=True)
class GenerateRequest:
    """Settings of text generation."""

    decoding: Decoding
    max_tokens: int | None
    """most tokens of a text; None: the usual number, or as many as there is room for"""
    stops: Sequence[str]
    """strings that end a text"""


def generate(
    config: RunConfig, checkpoint: Path, texts: Sequence[str], request: GenerateRequest
) -> list[dict[str, Any]] | None:
    """A record for each generated text, by prompt; None on all ranks but the reporting one. Raises ConfigError for a
    prompt that the model cannot read, before the weights are loaded. Collective.

    A record has `prompt`, `text`, of prompts with sentinels `filled` (the prompt with its gaps filled), and of models
    with a decoder `tokens` (how many), `log_probability` and `ended`.
    """
    prompts = Prompts(config, load_tokenizer(checkpoint / TOKENIZER), source_tokenizer_of(config, checkpoint))
    names = [f"prompt {number}" for number in range(1, len(texts) + 1)]
    if config.model.has_decoder:
        requests = [prompts.request(text, request.max_tokens, name) for text, name in zip(texts, names, strict=True)]
        engine = build_scorer(config, checkpoint)
        decoded = decode(engine, requests, request.decoding, prompts.stops(request.stops))
        records = [
            _record(
                text,
                until(prompts.generated_text(of_prompt, one.tokens), request.stops),
                prompts.filled(of_prompt, one.tokens),
            )
            | {"tokens": len(one.tokens), "log_probability": one.log_probability, "ended": one.ended}
            for text, of_prompt, generated in zip(texts, requests, decoded, strict=True)
            for one in generated
        ]
    else:
        positions = config.model.sequence_length
        inputs = [masked_input(prompts, text, positions, name) for text, name in zip(texts, names, strict=True)]
        engine = build_scorer(config, checkpoint)
        records = [
            _record(text, prompts.decode(ids), None)
            for text, ids in zip(texts, fill(engine, prompts, inputs), strict=True)
        ]
    return records if engine.is_reporter else None


def _record(prompt: str, text: str, filled: str | None) -> dict[str, Any]:
    return {"prompt": prompt, "text": text} | ({} if filled is None else {"filled": filled})
