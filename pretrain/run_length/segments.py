"""The length of a run, and the settings of each of its steps. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.run_length.changes import config_after
from pretrain.run_length.ramp import batch_sizes

Position = tuple[int, int]
"""progress of a run: (optimizer steps, tokens)"""


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of a run that have the same settings."""

    begin: Position
    config: RunConfig
    """the settings, as of a run that has them from its start"""
    end: Position
    """the end of the run under these settings"""


def segments(config: RunConfig) -> list[Segment]:
    """One segment, and one more for each change during the run. Each begins where its predecessor is at the step of the
    change; the last one ends the run. Raises ConfigError if a change does not fit the run."""
    changes, begin = config.run.changes, (0, 0)
    segments_so_far: list[Segment] = []
    for number in range(len(changes) + 1):
        now = config_after(config, changes[:number])
        if number:
            begin = _advance(segments_so_far[-1].config, begin, changes[number - 1].step, math.inf)
        end = _advance(now, begin, now.train.steps or math.inf, now.train.tokens or math.inf)
        segments_so_far.append(Segment(begin, now, end))
    return segments_so_far


def segment_after(run_segments: Sequence[Segment], tokens: int) -> Segment:
    """The segment of the step that follows `tokens` tokens."""
    return next(segment for segment in reversed(run_segments) if segment.begin[1] <= tokens)


def run_length(config: RunConfig) -> Position:
    """The end of the run. A run whose length is given in tokens ends with the first full batch that reaches it."""
    return segments(config)[-1].end


def _advance(config: RunConfig, begin: Position, last_step: float, last_token: float) -> Position:
    """The position of a run that continues from `begin` until it reaches `last_step` or `last_token`."""
    if config.train.epochs is not None:
        raise ConfigError("train.epochs gives no length before the data is counted: set train.steps or train.tokens")
    (steps, tokens), length = begin, config.sequence_length
    short = config.batch.short
    if short is not None and steps < min(short.steps, last_step):
        short_tokens = config.batch.sequences * short.sequence_length  # per batch
        count = int(min(short.steps - steps, last_step - steps, _batches(last_token - tokens, short_tokens)))
        steps, tokens = steps + count, tokens + count * short_tokens
    sizes, ramp = batch_sizes(config.batch), config.batch.ramp
    for number, size in enumerate(sizes, start=1):
        # A batch has this size if fewer than `until` tokens precede it (`batch_sequences`).
        until = last_token
        if ramp is not None and number < len(sizes):
            until = min(last_token, -(-ramp.tokens * number // len(sizes)))
        count = int(max(0, min(last_step - steps, _batches(until - tokens, size * length))))
        steps, tokens = steps + count, tokens + count * size * length
    return steps, tokens


def _batches(tokens: float, batch_tokens: int) -> float:
    """Number of batches with at least `tokens` tokens, which may be infinite: floor division would return nan."""
    return math.inf if math.isinf(tokens) else max(0, -(-tokens // batch_tokens))
