"""RunConfig -> everything a run needs, once, in reading order."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.errors import DataError
from data_pipeline.loader import ChainedStreams, SampleStream
from data_pipeline.recipes.base import Recipe
from data_pipeline.recipes.best_fit import PackedRows
from data_pipeline.recipes.causal import CausalRecipe
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint import store
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.files import TOKENIZER
from pretrain.checkpoint.identity import rank_fingerprint
from pretrain.config.health import Health
from pretrain.config.run_config import RunConfig
from pretrain.data.resolve import open_datasets
from pretrain.data.stream import check_repeats, open_stream
from pretrain.engine import device, rendezvous
from pretrain.engine.base import Engine
from pretrain.engine.collective import file_group, gather
from pretrain.engine.make import make_engine
from pretrain.engine.memory import check_memory_on_all_ranks
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import check_data_dir
from pretrain.layout.layout import Layout, plan_layout
from pretrain.observe.log import TaskResults
from pretrain.observe.own_seconds import own_seconds
from pretrain.observe.stragglers import Stragglers
from pretrain.process import watchdog
from pretrain.process.rank_location import RankLocation
from pretrain.run_length.segments import run_length

_MUCH_PADDING = 0.05  # text of all lengths leaves far less


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The model, data and settings of a run on this rank."""

    config: RunConfig
    layout: Layout
    engine: Engine
    stream: SampleStream | ChainedStreams
    heldout: Dataset
    """the first source's, of whose validation split `evaluate.tasks` are made"""
    recipe: Recipe
    """what is made of the data"""
    tokenizer: bytes
    tasks: Callable[[], TaskResults] | None
    """what scores the tasks of `evaluate.tasks`; None: there are none"""
    stragglers: Stragglers
    """what compares how fast ranks are"""
    notes: tuple[str, ...]
    """sentences about the data that the user should know"""


def join_ranks(config: RunConfig) -> list[Dataset]:
    """Opens the datasets of a resolved config and joins the process group; every rank calls this. Raises ConfigError on
    all of them where they disagree on it."""
    datasets = open_datasets(config)
    device.set_max_connections(config.parallel)
    rendezvous.init_process_group(config.health, rank_fingerprint(config, datasets))
    return datasets


def build_run(config: RunConfig, datasets: Sequence[Dataset], places: Sequence[RankLocation]) -> TrainingRun:
    """`config` is resolved, `datasets` are from `meet`, `places` are of all ranks. Every rank calls this."""
    layout = plan_layout(config, dist.get_world_size())
    check_memory_on_all_ranks(config, layout)
    watchdog.kick("opening the data")
    with watchdog.allow_slow_io():
        stream, recipe = open_stream(config, datasets)
        check_repeats(config, stream)
    notes = (
        *_dead_rows(config, recipe),
        *_left_out(stream, recipe),
        *_padding(stream),
        *_checked_later(config, stream),
        *_unreached(config),
    )
    if config.data.verify:
        _verify(stream, file_group(config.health.timeout_s))
    watchdog.kick("building the model")
    engine = make_engine(config, layout)
    watchdog.kick("reading what will be scored")
    heldout = stream.datasets[0]
    tokenizer = (heldout.directory / heldout.manifest.tokenizer.file).read_bytes()
    tasks = None
    check_data_dir(Path(config.evaluate.data).expanduser() if config.evaluate.data else None)
    if config.evaluate.tasks:
        from pretrain.evaluate.live import live_tasks  # half a second, which a run without tasks need not wait

        with watchdog.allow_slow_io():
            tasks = live_tasks(config, engine, heldout)
    every = config.health.straggler_steps if config.health.stragglers == "warn" else 0
    stages = [layout.coordinates(rank)[-1] for rank in range(layout.world)]
    stragglers = Stragglers(
        every, dist.get_rank(), places=places, stages=stages, largest=engine.largest, measure=own_seconds
    )
    return TrainingRun(
        config=config,
        layout=layout,
        engine=engine,
        stream=stream,
        heldout=heldout,
        recipe=recipe,
        tokenizer=tokenizer,
        tasks=tasks,
        stragglers=stragglers,
        notes=notes,
    )


def _dead_rows(config: RunConfig, recipe: Recipe) -> tuple[str, ...]:
    """A note on embedding rows that no data can use, if there are any."""
    model, needed = config.model, recipe.vocabulary
    rows = model.vocab_size - needed
    if rows < model.vocabulary_multiple:  # as rounding up makes anyway
        return ()
    parameters = rows * model.embedding_dim * (1 if model.tie_word_embeddings else 2)
    return (
        f"model.vocabulary={model.vocab_size} is more than the {needed:,} ids of the data's tokenizer and the "
        f"objective: {rows:,} rows of the embedding ({parameters:,} parameters) are unused: set "
        f"model.vocabulary={needed}, or null to follow the data, unless the model will later learn from other data",
    )


def _left_out(stream: SampleStream | ChainedStreams, recipe: Recipe) -> tuple[str, ...]:
    """Notes on documents that make no samples. Raises DataError if no held-out samples are left: a run needs them
    late."""
    made = [(dataset, "train", samples) for dataset, samples in zip(stream.datasets, stream.samples, strict=True)]
    if not isinstance(recipe, CausalRecipe):  # whose last window is filled up
        made += [(dataset, "validation", recipe.samples(dataset, "validation")) for dataset in stream.datasets]
    return tuple(
        f"{samples.num_skipped:,} documents of the {split} split of {dataset.address} make no sample of "
        f"{recipe.sequence_length} positions and are skipped; {samples.count:,} samples remain"
        for dataset, split, samples in made
        if samples.num_skipped
    )


def _padding(stream: SampleStream | ChainedStreams) -> tuple[str, ...]:
    """Notes on packed rows with much padding."""
    return tuple(
        f"{samples.padding:.0%} of the {samples.count:,} packed rows of the train split of {dataset.address} is "
        "padding: another model.sequence_length suits its documents better, or objective.packing=windows"
        for dataset, samples in zip(stream.datasets, stream.samples, strict=True)
        if isinstance(samples, PackedRows) and samples.padding > _MUCH_PADDING
    )


def _checked_later(config: RunConfig, stream: SampleStream | ChainedStreams) -> tuple[str, ...]:
    """Notes on datasets that data.verify does not verify before the first step."""
    return tuple(
        f"{dataset.address} is not verified before the first step, but each part of it as it is fetched"
        for dataset in stream.datasets
        if config.data.verify and dataset.remote
    )


def _unreached(config: RunConfig) -> tuple[str, ...]:
    """Settings that the run ends before, in sentences."""
    found, health, schedule = [], config.health, config.schedule
    steps, tokens = run_length(config)
    end, unit = (steps, "steps") if schedule.in_steps else (tokens, "tokens")
    decay = getattr(schedule, "decay_length", None)
    if decay is not None and decay > end:
        found.append(
            f"schedule.decay_{unit}={decay:,} is longer than the run, which ends after {end:,} {unit}: the learning "
            f"rate ends at {schedule.factor(end, end):.0%} of its peak"
        )
    if health.hang_s is not None and health.hang_s > max(health.timeout_s / 2, Health().hang_s or 0):
        found.append(
            f"health.hang_s={health.hang_s:g} is more than half of health.timeout_s={health.timeout_s}, so that "
            f"{health.timeout_s / 2:g} s count"
        )
    return tuple(found)


def starting_weights(config: RunConfig, dataset: Dataset) -> Path | None:
    """The checkpoint that `run.start_from` means. Raises ConfigError where its ids mean other text. Collective."""
    if config.run.start_from is None:
        return None
    group = file_group(config.health.timeout_s)
    checkpoint = store.first_valid(locate(Path(config.run.start_from)), _warn, group)
    if load_tokenizer(checkpoint / TOKENIZER).identity != dataset.manifest.tokenizer.identity:
        raise ConfigError(
            f"run.start_from={config.run.start_from} was trained with another tokenizer than {dataset.address}: "
            f"build the data again with tokenizer.path={checkpoint / TOKENIZER}"
        )
    return checkpoint


def _warn(sentence: str) -> None:
    if dist.get_rank() == 0:
        print(f"warning: {sentence}", file=sys.stderr)


def _verify(stream: SampleStream | ChainedStreams, group: dist.ProcessGroup) -> None:
    """Reads every shard once on each machine against its checksum, the files shared out over the machine's ranks."""
    watchdog.kick("verifying the data")
    problem = None
    try:
        for dataset in (dataset for dataset in stream.datasets if not dataset.remote):
            with watchdog.allow_slow_io():
                dataset.verify(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except DataError as error:
        problem = str(error)
    found = next((p for p in gather(problem, group) if p is not None), None)
    if found is not None:
        raise DataError(found)
