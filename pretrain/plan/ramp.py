"""How many sequences the next global batch has, and of what length: pure functions of what was seen, never of the
layout."""

from pretrain.config.schema import BatchSize, RunConfig


def batch_sizes(batch: BatchSize) -> list[int]:
    """Every size the global batch takes during a run, in sequences, rising."""
    if batch.ramp is None:
        return [batch.sequences]
    return list(range(batch.ramp.start_sequences, batch.sequences + 1, batch.ramp.increment_sequences))


def batch_sequences(batch: BatchSize, tokens_seen: int) -> int:
    """Sequences of the global batch that follows `tokens_seen` tokens. The ramp is linear in tokens (GPT-3, table
    2.1 and appendix B), taken in equal steps."""
    sizes = batch_sizes(batch)
    if batch.ramp is None or tokens_seen >= batch.ramp.tokens:
        return sizes[-1]
    return sizes[tokens_seen * len(sizes) // batch.ramp.tokens]


def short_samples(config: RunConfig) -> int:
    """Samples at the beginning of a run that are shorter than the others (`batch.short`)."""
    short = config.batch.short
    return short.steps * config.batch.sequences if short is not None else 0


def tokens_of(config: RunConfig, samples: int) -> int:
    """Input tokens in the first `samples` samples of a run."""
    short = config.batch.short
    length = config.model.sequence_length
    if short is None:
        return samples * length
    few = min(samples, short_samples(config))
    return few * short.sequence_length + (samples - few) * length
