"""How many sequences the next global batch has, and of what length: pure functions of what was seen, never of the
layout."""

from pretrain.config.batch import BatchSize
from pretrain.config.run_config import RunConfig


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


def micro_sequences(batch: BatchSize, share: int, group: int) -> int:
    """Sequences of a micro-batch where a data rank has `share` of a batch, and micro-batches come in groups of `group`:
    `batch.micro_sequences`, or of a smaller batch, on the way up a ramp, the most below that divide it."""
    return next(many for many in range(batch.micro_sequences, 0, -1) if share % (many * group) == 0)


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


def first_batch_at(config: RunConfig, tokens: int) -> int:
    """Samples in the whole batches that a run without `batch.short` takes to see at least `tokens` tokens."""
    assert config.batch.short is None
    ramp, length = config.batch.ramp, config.model.sequence_length
    sizes = batch_sizes(config.batch)
    samples = 0
    for number, size in enumerate(sizes, start=1):
        last = ramp is None or number == len(sizes)
        # A batch is of this size if fewer than so many tokens came before it.
        until = tokens if ramp is None or last else min(tokens, -(-ramp.tokens * number // len(sizes)))
        samples += max(0, -(-(until - samples * length) // (size * length))) * size
    return samples


def samples_of(config: RunConfig, tokens: int) -> int:
    """The inverse of `tokens_of`."""
    short, few = config.batch.short, short_samples(config)
    length = config.model.sequence_length
    short_tokens = few * short.sequence_length if short is not None else 0
    if short is not None and tokens < short_tokens:
        return tokens // short.sequence_length
    return few + (tokens - short_tokens) // length
