"""Advice on a run's own numbers: which of them rule out better layouts, and what the nearest other numbers would
gain."""

from collections.abc import Iterator

from pretrain.config.batch import BatchSize
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.plan.device import Device
from pretrain.plan.estimate.constants import StackFactor
from pretrain.plan.search import Option, search

_WORTH = 0.01  # smaller gains are not reported
_NEAR = 0.05  # of the batch, how far another one may differ
_LARGEST_START = 512


def advice(
    config: RunConfig, device: Device, gpus: int, *, per_node: int, stack: StackFactor, best: Option
) -> list[str]:
    """Sentence for each other batch or ramp under which a step is faster for its number of sequences."""
    sequences_per_s, sentences, best_gain = config.batch.sequences / best.seconds, [], 0.0
    for batch, sentence in _alternatives(config.batch):
        try:
            result = search(
                config.model_copy(update={"batch": batch}), device, gpus, per_node=per_node, stack=stack, top=1
            )
        except ConfigError:
            continue
        if not result.options:
            continue
        fastest = result.options[0]
        gain = batch.sequences / fastest.seconds / sequences_per_s - 1
        if gain > best_gain + _WORTH:
            sentences.append(f"{sentence}: {gain:.1%} faster for the same sequences, as {fastest.choice.layout}")
            best_gain = gain
    return sentences


def _alternatives(batch: BatchSize) -> Iterator[tuple[BatchSize, str]]:
    """Coarser ramps of this batch, then the nearest batch with more divisors."""
    ramp, rounder = batch.ramp, _rounder(batch.sequences)
    if ramp is not None and (start := _start(batch.sequences, ramp.start_sequences)) > ramp.start_sequences:
        yield (
            _with(batch, batch.sequences, start),
            (
                f"batch.ramp starts at {ramp.start_sequences}, so that no more data ranks can share a batch: "
                f"start_sequences={start} increment_sequences={start} would be"
            ),
        )
    if rounder is not None:
        start = _start(rounder, ramp.start_sequences) if ramp is not None else 0
        ramped = f" with a ramp of {start} at a time" if start else ""
        yield (
            _with(batch, rounder, start),
            (
                f"batch.sequences={batch.sequences:,} has few divisors that suit data ranks and stages: "
                f"{rounder:,}{ramped} would be"
            ),
        )


def _rounder(sequences: int) -> int | None:
    """The nearest other multiple of a larger power of two."""
    power_of_two = sequences & -sequences
    for power in (512, 256, 128, 64, 32):
        near = round(sequences / power) * power
        if power > power_of_two and near and abs(near - sequences) <= _NEAR * sequences:
            return near
    return None


def _start(sequences: int, start: int) -> int:
    """The largest beginning of a ramp that is `start` doubled some times, and divides the batch."""
    while sequences % (2 * start) == 0 and 2 * start <= _LARGEST_START:
        start *= 2
    return start


def _with(batch: BatchSize, sequences: int, start: int) -> BatchSize:
    ramp = batch.ramp and batch.ramp.model_copy(update={"start_sequences": start, "increment_sequences": start})
    return batch.model_copy(update={"sequences": sequences, "ramp": ramp})
