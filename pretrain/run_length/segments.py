"""How long a run is, and which settings its steps are made with. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pretrain.config.run_config import RunConfig
from pretrain.run_length.changes import in_force
from pretrain.run_length.ramp import batch_sizes

Position = tuple[int, int]
"""(optimizer steps, tokens) that are done"""


@dataclass(frozen=True)
class Segment:
    """Steps of a run that are made with the same settings."""

    begin: Position
    config: RunConfig
    """the settings, as of a run that had them from its start"""
    end: Position
    """where the run is over with them"""


def segments(config: RunConfig) -> list[Segment]:
    """One, and one more for each change in the middle of the run. Each begins where the one before it was at the step
    of the change; the last one ends the run. Raises ConfigError for a change that does not fit the run."""
    changes, begin = config.run.changes, (0, 0)
    found: list[Segment] = []
    for number in range(len(changes) + 1):
        now = in_force(config, changes[:number])
        if number:
            begin = _walk(found[-1].config, begin, changes[number - 1].step, math.inf)
        found.append(Segment(begin, now, _walk(now, begin, now.train.steps or math.inf, now.train.tokens or math.inf)))
    return found


def segment_after(found: Sequence[Segment], tokens: int) -> Segment:
    """The one that the step after `tokens` tokens is of."""
    return next(segment for segment in reversed(found) if segment.begin[1] <= tokens)


def run_length(config: RunConfig) -> Position:
    """The end of the run. One given in tokens ends with the first whole batch that reaches them; that batch counts."""
    return segments(config)[-1].end


def _walk(config: RunConfig, begin: Position, last_step: float, last_token: float) -> Position:
    """Where the run is that goes on from `begin` until one of the two is reached."""
    (steps, tokens), length = begin, config.model.sequence_length
    short = config.batch.short
    if short is not None and steps < min(short.steps, last_step):
        short_tokens = config.batch.sequences * short.sequence_length  # of a batch
        few = int(min(short.steps - steps, last_step - steps, _batches(last_token - tokens, short_tokens)))
        steps, tokens = steps + few, tokens + few * short_tokens
    sizes, ramp = batch_sizes(config.batch), config.batch.ramp
    for number, size in enumerate(sizes, start=1):
        # A batch is of this size if fewer than so many tokens came before it (`batch_sequences`).
        until = last_token
        if ramp is not None and number < len(sizes):
            until = min(last_token, -(-ramp.tokens * number // len(sizes)))
        few = int(max(0, min(last_step - steps, _batches(until - tokens, size * length))))
        steps, tokens = steps + few, tokens + few * size * length
    return steps, tokens


def _batches(tokens: float, batch_tokens: int) -> float:
    """Batches that have at least `tokens`, which may be infinite: whole division would make that no number."""
    return math.inf if math.isinf(tokens) else max(0, -(-tokens // batch_tokens))
