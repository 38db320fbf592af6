"""RunConfig -> the samples of the run. Without torch, so that what looks at a run's data starts at once."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.dataset.source import DataSource
from data_pipeline.loader import ChainedStreams, SampleStream
from data_pipeline.order.mixture import mixing_weights
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.by_source import with_equal_columns
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets, recipe_of
from pretrain.errors import ConfigError
from pretrain.run_length.ramp import samples_of, samples_to_reach, short_samples, tokens_of
from pretrain.run_length.segments import run_length

Stream = SampleStream | ChainedStreams


def open_stream(
    config: RunConfig, datasets: Sequence[DataSource] | None = None
) -> tuple[SampleStream | ChainedStreams, Recipe]:
    """The samples of a run, and what they are made by (of the model's whole length). `datasets`: those of its sources,
    if they are open already."""
    datasets = datasets or open_datasets(config)
    weights = [source.weight for source in config.data.resolved_sources]
    tokenizer = datasets[0].tokenizer()
    recipe = recipe_of(config, tokenizer)
    mixing = config.data.mixing
    if mixing is not None:
        examples = [recipe.samples(dataset, "train").count for dataset in datasets]
        settings = mixing.model_dump(exclude={"name"})
        weights = mixing_weights(examples, mixing.name, **settings)
    sources = list(zip(datasets, weights, strict=True))
    names = [source.called for source in config.data.resolved_sources]
    phases = [
        (samples_to_reach(config, phase.tokens), [phase.weights[name] for name in names])
        for phase in config.data.phases
    ]
    lanes = config.batch.sequences if config.model.memory_length else 0
    stream = SampleStream(sources, recipe, config.run.seed, phases=phases, lanes=lanes)
    _suit_objectives(config, names, stream)
    if config.batch.short is None:
        return skip_samples(stream, config), recipe
    first = SampleStream(sources, recipe_of(config, tokenizer, config.batch.short.sequence_length), config.run.seed)
    _suit_objectives(config, names, first)
    return skip_samples(ChainedStreams(first, short_samples(config), stream), config), recipe


def _suit_objectives(config: RunConfig, names: list[str], stream: SampleStream) -> None:
    """Makes rows of several objectives alike. Raises DataError where samples do not suit their objective, or each
    other."""
    if not config.data.has_several_objectives:
        config.objective.check_sources(names, stream.samples)
        return
    for name, source, one in zip(names, config.data.sources, stream.samples, strict=True):
        (source.objective or config.objective).check_sources([name], [one])
    stream.samples = with_equal_columns(names, stream.samples, visible=config.model.stacks[0] > 0)


def skip_samples(stream: Stream, config: RunConfig) -> Stream:
    """`stream` without the samples that the run leaves out (`run.skipped`), whatever it left out before."""
    return stream.skipping([(skip.sample, skip.samples) for skip in config.run.skipped])


def skipped_ids(stream: Stream, config: RunConfig) -> list[NDArray[np.int64]]:
    """[samples, 3] (source, epoch, number) of each of `run.skipped`."""
    return [skip_samples(stream, config).skipped_ids(number) for number in range(len(config.run.skipped))]


def planned_samples(config: RunConfig) -> int:
    """Samples that the run has consumed at its end."""
    _, tokens = run_length(config)
    return samples_of(config, tokens)


def check_repeats(config: RunConfig, stream: SampleStream | ChainedStreams) -> None:
    """Raises ConfigError if the run would read a source more often than its `max_epochs`."""
    samples = planned_samples(config)
    planned = stream.epochs(samples)
    for number, source in enumerate(config.data.resolved_sources):
        most = source.max_epochs
        if most is not None and planned[number] > most:
            sample = bisect_right(range(samples + 1), most, key=lambda n: float(stream.epochs(n)[number]))
            raise ConfigError(
                f"this run would read {source.called} {planned[number]:.2f} times, more than max_epochs={most:g}, "
                f"which it exceeds at {tokens_of(config, sample):,} tokens: train for less, lower its weight, or raise "
                "max_epochs"
            )
