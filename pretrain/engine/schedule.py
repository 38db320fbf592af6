"""Learning rate as a pure function of tokens seen."""

import math

from pretrain.config.schema import RunConfig


def learning_rate(config: RunConfig, tokens: int, end_tokens: int) -> float:
    """Learning rate of the step that brings the run to `tokens` tokens.

    Linear warm-up from zero over `schedule.warmup_tokens`; then the decay, which ends at `schedule.decay_tokens`
    (`end_tokens`, the length of the run, where that is absent) at `final_fraction` of the peak and stays there.
    GPT-3, appendix B: cosine to 10% over 260e9 tokens after a warm-up over 375e6.
    """
    peak, schedule = config.optimizer.learning_rate, config.schedule
    if tokens < schedule.warmup_tokens:
        return peak * tokens / schedule.warmup_tokens
    if schedule.name == "constant":
        return peak
    decay_tokens = schedule.decay_tokens or end_tokens
    span = max(1, decay_tokens - schedule.warmup_tokens)
    done = min(1.0, (tokens - schedule.warmup_tokens) / span)
    shape = 0.5 * (1 + math.cos(math.pi * done)) if schedule.name == "cosine" else 1 - done
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * shape)
