"""How many sequences the next global batch has: a pure function of the tokens seen, never of the layout."""

from pretrain.config.schema import BatchSize


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
