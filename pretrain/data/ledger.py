"""Ledger of a run: the amount of each source that it reads, counted from the number of samples it has seen, not
logged."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.loader import ChainedStreams, SampleStream
from pretrain.config.run_config import RunConfig
from pretrain.data.consumed import ConsumedSamples, config_of_run
from pretrain.data.stream import open_stream, planned_samples, skipped_ids
from pretrain.run_dir.records import read_metrics
from pretrain.run_length.changes import change_record
from pretrain.run_length.ramp import short_samples, tokens_of
from pretrain.run_length.segments import run_length


@dataclass(frozen=True, kw_only=True)
class SourceUsage:
    """One source after some number of samples of a run."""

    name: str
    path: str
    share: float
    """share of the samples by the mixture's weights at that sample, 0 to 1"""
    samples: int
    tokens: int
    """tokens that the model reads of it: samples times their length"""
    epochs: float
    """number of times that the source has been read"""


def read_ledger(run: Path) -> dict[str, Any]:
    """Ledger of a run: how much of each source it has read and will have read at its end, with skipped data and
    changes. Raises RunError if there is no run or its data has changed, DataError if its data can't be read."""
    config = config_of_run(run)
    stream, _ = open_stream(config)
    consumed = ConsumedSamples(run, read_metrics(run), stream)
    samples = consumed.samples
    steps, end_tokens = run_length(config)
    return {
        "step": consumed.steps,
        "steps": steps,
        "tokens": tokens_of(config, samples),
        "end_tokens": end_tokens,
        "samples": samples,
        "end_samples": planned_samples(config),
        "labelled": config.objective.labelled,
        "realised": [asdict(entry) for entry in source_usage(config, stream, samples)],
        "planned": [asdict(entry) for entry in planned_usage(config, stream)],
        "skipped": skipped_usage(config, stream),
        "changes": [change_record(config, number) for number in range(len(config.run.changes))],
    }


def source_usage(config: RunConfig, stream: SampleStream | ChainedStreams, samples: int) -> list[SourceUsage]:
    """Usage of each source in the first `samples` samples of the run, and its share of the last of them."""
    shares, counts = stream.shares(max(0, samples - 1)), stream.counts(samples)
    tokens = config.sequence_length * counts
    if config.batch.short is not None:
        fewer = config.sequence_length - config.batch.short.sequence_length
        tokens = tokens - fewer * stream.counts(min(samples, short_samples(config)))
    epochs = stream.epochs(samples)
    return [
        SourceUsage(
            name=source.called,
            path=source.path,
            share=shares[n],
            samples=int(counts[n]),
            tokens=int(tokens[n]),
            epochs=float(epochs[n]),
        )
        for n, source in enumerate(config.data.resolved_sources)
    ]


def planned_usage(config: RunConfig, stream: SampleStream | ChainedStreams) -> list[SourceUsage]:
    """The sources at the end of the run."""
    return source_usage(config, stream, planned_samples(config))


def skipped_usage(config: RunConfig, stream: SampleStream | ChainedStreams) -> list[dict[str, Any]]:
    """Each of `run.skipped`, and the `samples` and `tokens` that a model would have read of each source."""
    names = [source.called for source in config.data.resolved_sources]
    usage = []
    for skip, ids in zip(config.run.skipped, skipped_ids(stream, config), strict=True):
        length = tokens_of(config, skip.sample + 1) - tokens_of(config, skip.sample)
        counts = np.bincount(ids[:, 0], minlength=len(names)).tolist()
        samples = {name: count for name, count in zip(names, counts, strict=True) if count}
        tokens = {name: length * count for name, count in samples.items()}
        usage.append({**skip.model_dump(), "samples": samples, "tokens": tokens})
    return usage


def summary(sources: Sequence[SourceUsage]) -> str:
    """One line: of each source its part of all samples, their number, and how often it is read."""
    total = sum(source.samples for source in sources)
    return "; ".join(
        f"{source.name}: {source.samples / total:.1%}, {compact_count(source.samples)} samples, "
        f"{source.epochs:.2f} epochs"
        for source in sources
    )


def compact_count(count: int) -> str:
    """1234567 -> 1.2M."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
