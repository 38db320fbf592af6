"""The number and length of the sequences in the next global batch: pure functions of the tokens seen so far, never of
the layout."""

from pretrain.config.batch import BatchSize
from pretrain.config.run_config import RunConfig


def batch_sizes(batch: BatchSize) -> list[int]:
    """Every size of the global batch during a run, in sequences, ascending."""
    if batch.ramp is None:
        return [batch.sequences]
    return list(range(batch.ramp.start_sequences, batch.sequences + 1, batch.ramp.increment_sequences))


def batch_sequences(batch: BatchSize, tokens_seen: int) -> int:
    """Sequences in the global batch that follows `tokens_seen` tokens. The ramp is linear in tokens (GPT-3, table
    2.1 and appendix B), in equal steps."""
    sizes = batch_sizes(batch)
    if batch.ramp is None or tokens_seen >= batch.ramp.tokens:
        return sizes[-1]
    return sizes[tokens_seen * len(sizes) // batch.ramp.tokens]


def micro_sequences(batch: BatchSize, share: int, group: int) -> int:
    """Sequences in a micro-batch when a data rank has `share` sequences of the global batch and the number of
    micro-batches is a multiple of `group`: `batch.micro_sequences`, or for the smaller batches of a ramp the largest
    smaller number that divides the share."""
    return next(size for size in range(batch.micro_sequences, 0, -1) if share % (size * group) == 0)


def short_samples(config: RunConfig) -> int:
    """Number of samples at the start of a run that are shorter than the others (`batch.short`)."""
    short = config.batch.short
    return short.steps * config.batch.sequences if short is not None else 0


def tokens_of(config: RunConfig, samples: int) -> int:
    """Input tokens in the first `samples` samples of a run."""
    short = config.batch.short
    length = config.sequence_length
    if short is None:
        return samples * length
    num_short = min(samples, short_samples(config))
    return num_short * short.sequence_length + (samples - num_short) * length


def samples_to_reach(config: RunConfig, tokens: int) -> int:
    """Number of samples in the full batches that a run without `batch.short` needs to see at least `tokens` tokens."""
    assert config.batch.short is None
    ramp, length = config.batch.ramp, config.sequence_length
    sizes = batch_sizes(config.batch)
    samples = 0
    for number, size in enumerate(sizes, start=1):
        last = ramp is None or number == len(sizes)
        # A batch has this size if fewer than `until` tokens precede it.
        until = tokens if ramp is None or last else min(tokens, -(-ramp.tokens * number // len(sizes)))
        samples += max(0, -(-(until - samples * length) // (size * length))) * size
    return samples


def samples_of(config: RunConfig, tokens: int) -> int:
    """Samples in the first `tokens` input tokens of a run, the inverse of `tokens_of`."""
    short, num_short = config.batch.short, short_samples(config)
    length = config.sequence_length
    short_tokens = num_short * short.sequence_length if short is not None else 0
    if short is not None and tokens < short_tokens:
        return tokens // short.sequence_length
    return num_short + (tokens - short_tokens) // length
