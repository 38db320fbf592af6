"""How long a run is. No torch."""

import math

from pretrain.config.run_config import RunConfig
from pretrain.plan.ramp import batch_sequences


def run_length(config: RunConfig) -> tuple[int, int]:
    """(optimizer steps, tokens) at the end of the run. One given in tokens ends with the first whole batch that reaches
    them; `tokens` counts that batch."""
    train, length = config.train, config.model.sequence_length
    last_step, last_token = train.steps or math.inf, train.tokens or math.inf
    ramp_tokens = config.batch.ramp.tokens if config.batch.ramp else 0
    steps = tokens = 0
    if config.batch.short is not None:
        short_tokens = config.batch.sequences * config.batch.short.sequence_length  # of a batch
        steps = int(min(config.batch.short.steps, last_step, -(-last_token // short_tokens)))
        tokens = steps * short_tokens
    while steps < last_step and tokens < min(ramp_tokens, last_token):
        tokens += batch_sequences(config.batch, tokens) * length
        steps += 1
    batch_tokens = config.batch.sequences * length
    left = int(last_step) - steps if train.tokens is None else max(0, -(-(train.tokens - tokens) // batch_tokens))
    return steps + left, tokens + left * batch_tokens
