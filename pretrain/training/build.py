"""Construction of a run from its config: ranks, data, engine and tasks, in the order in which they are needed."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from data_pipeline.dataset.source import DataSource
from data_pipeline.errors import DataError
from data_pipeline.labelled.dataset import LabelledDataset
from data_pipeline.loader import ChainedStreams, SampleStream
from data_pipeline.recipes.base import Recipe
from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.checkpoint import store
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.identity import rank_fingerprint
from pretrain.checkpoint.one_model import mtp_tensors
from pretrain.config.run_config import RunConfig
from pretrain.config.start import teacher_checkpoint
from pretrain.data.resolve import open_datasets
from pretrain.data.stream import check_repeats, open_stream
from pretrain.engine import device, rendezvous
from pretrain.engine.base import Engine, TeacherWeights
from pretrain.engine.collective import file_group, gather
from pretrain.engine.make import make_engine
from pretrain.engine.memory import check_memory_on_all_ranks
from pretrain.errors import ConfigError
from pretrain.evaluate.tasks.base import check_data_dir
from pretrain.finetune.sources import SourceJudges, make_judges
from pretrain.layout.layout import Layout, plan_layout
from pretrain.observe.own_seconds import own_seconds
from pretrain.observe.profile import StepProfiler, check_profile
from pretrain.observe.results import TaskResults
from pretrain.observe.stragglers import Stragglers
from pretrain.process import watchdog
from pretrain.process.rank_location import RankLocation
from pretrain.run_dir.paths import SOURCE_TOKENIZER, TOKENIZER
from pretrain.run_length.segments import run_length
from pretrain.training.attention_kernel import attention_line
from pretrain.training.best import check_best
from pretrain.training.notes import notes_of


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Model, data and settings of a run on this rank, ready to train."""

    config: RunConfig
    """resolved"""
    layout: Layout
    engine: Engine
    stream: SampleStream | ChainedStreams
    """training samples in order, before any are skipped"""
    heldout: DataSource
    """dataset of the first source, whose validation split `evaluate.tasks` scores"""
    recipe: Recipe
    """conversion of documents into samples"""
    tokenizer: bytes
    """tokenizer file of the data, copied into every checkpoint"""
    source_tokenizer: bytes | None
    """tokenizer file of inputs in another vocabulary, copied too; None: there is none"""
    tasks: Callable[[], TaskResults] | None
    """scores the tasks of `evaluate.tasks` (collective); None: there are none"""
    judges: SourceJudges | None
    """answer all rows of a split of each source (collective); None: the rows are not labelled"""
    stragglers: Stragglers
    """comparison of the speed of ranks"""
    profiler: StepProfiler
    """profiles of steps of this rank"""
    attention_line: str | None
    """a line that names the attention kernel, for those who watch; None: there is none to name"""
    notes: tuple[str, ...]
    """warnings about data, settings and versions, one sentence each"""


def join_ranks(config: RunConfig) -> list[DataSource]:
    """Opens the datasets of a resolved config and initializes the process group. Returns the datasets, one per source.
    Raises ConfigError on every rank if ranks disagree on config, data or code, RendezvousError if ranks are missing.
    Collective."""
    datasets = open_datasets(config)
    device.set_max_connections(config.parallel)
    rendezvous.init_process_group(config.health, rank_fingerprint(config, datasets))
    return datasets


def build_run(config: RunConfig, datasets: Sequence[DataSource], locations: Sequence[RankLocation]) -> TrainingRun:
    """Builds the run of a resolved config on this rank. `datasets` come from `join_ranks`; `locations` has one entry
    per rank, in order. The engine's weights are not initialized yet.

    Raises ConfigError for a layout or settings that do not fit the world size, the memory or the data, DataError for
    damaged or insufficient data. Collective."""
    layout = plan_layout(config, dist.get_world_size())
    check_profile(config.profile, layout.world, run_length(config)[0], on_gpu=torch.cuda.is_available())
    check_memory_on_all_ranks(config, layout)
    watchdog.kick("opening the data")
    with watchdog.allow_slow_io():
        stream, recipe = open_stream(config, datasets)
        check_repeats(config, stream)
    notes = notes_of(config, stream, recipe)
    if config.data.verify:
        _verify(stream, file_group(config.health.timeout_s))
    watchdog.kick("building the model")
    engine = make_engine(config, layout)
    _load_teacher(config, engine, datasets[0])
    watchdog.kick("reading evaluation data")
    heldout = stream.datasets[0]
    tokenizer = heldout.tokenizer_bytes()
    source_tokenizer = heldout.source_tokenizer_bytes() if isinstance(heldout, LabelledDataset) else None
    tasks = None
    check_data_dir(Path(config.evaluate.data).expanduser() if config.evaluate.data else None)
    if config.evaluate.tasks:
        from pretrain.evaluate.live_tasks import live_tasks  # takes half a second to import

        with watchdog.allow_slow_io():
            tasks = live_tasks(config, engine, heldout)
    judges = make_judges(config, engine, stream.datasets, recipe)
    check_best(config.checkpoint.best, () if judges is None or judges.writes_texts else judges.figures)
    return TrainingRun(
        config=config,
        layout=layout,
        engine=engine,
        stream=stream,
        heldout=heldout,
        recipe=recipe,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        tasks=tasks,
        judges=judges,
        stragglers=_stragglers(config, layout, engine, locations),
        profiler=StepProfiler(config.profile, Path(config.run.dir), dist.get_rank(), engine.named_ranges),
        attention_line=attention_line(config, layout),
        notes=notes,
    )


def _stragglers(config: RunConfig, layout: Layout, engine: Engine, locations: Sequence[RankLocation]) -> Stragglers:
    every = config.health.straggler_steps if config.health.stragglers == "warn" else 0
    stages = [layout.coordinates(rank)[-1] for rank in range(layout.world)]
    return Stragglers(
        every, dist.get_rank(), locations=locations, stages=stages, largest=engine.largest, measure=own_seconds
    )


def starting_weights(config: RunConfig, dataset: DataSource) -> Path | None:
    """Finds the checkpoint whose weights the run starts with; None if they are drawn. Raises ConfigError if there is
    none or if it was trained with another tokenizer than `dataset`, RunError if all of its checkpoints are damaged.
    Collective."""
    if config.run.start_from is None or config.finetune.weights == "random":
        return None
    group = file_group(config.health.timeout_s)
    checkpoint = store.first_valid(locate(Path(config.run.start_from)), _warn, group)
    if load_tokenizer(checkpoint / TOKENIZER).identity != dataset.tokenizer_identity:
        raise ConfigError(
            f"run.start_from={config.run.start_from} was trained with another tokenizer than {dataset.address}: "
            f"build the data again with tokenizer.path={checkpoint / TOKENIZER}"
        )
    source = dataset.source_tokenizer if isinstance(dataset, LabelledDataset) else None
    recorded = checkpoint / SOURCE_TOKENIZER
    if source is not None and recorded.is_file() and load_tokenizer(recorded).identity != source.identity:
        raise ConfigError(
            f"the source encoder of run.start_from={config.run.start_from} was trained with another tokenizer than "
            "data.source_tokenizer: leave that out"
        )
    return checkpoint


def _load_teacher(config: RunConfig, engine: Engine, dataset: DataSource) -> None:
    """Loads the weights of `distillation.teacher`, if the run has one. Raises ConfigError if it was trained with
    another tokenizer than `dataset`, RunError if its checkpoint is damaged. Collective."""
    if config.distillation.teacher is None:
        return
    watchdog.kick("loading the teacher")
    group = file_group(config.health.timeout_s)
    checkpoint = store.first_valid([teacher_checkpoint(config.distillation.teacher)], _warn, group)
    if load_tokenizer(checkpoint / TOKENIZER).identity != dataset.tokenizer_identity:
        raise ConfigError(
            f"distillation.teacher={config.distillation.teacher} was trained with another tokenizer than "
            f"{dataset.address}: build the data again with tokenizer.path={checkpoint / TOKENIZER}"
        )
    store.load(checkpoint, engine.part(TeacherWeights).weights_state(), group, mtp_tensors(checkpoint))


def _warn(sentence: str) -> None:
    if dist.get_rank() == 0:
        print(f"warning: {sentence}", file=sys.stderr)


def _verify(stream: SampleStream | ChainedStreams, group: dist.ProcessGroup) -> None:
    """Verifies the checksums of all local datasets, once per host: the ranks of a host share the files. Raises
    DataError on every rank if any rank finds damage. Collective."""
    watchdog.kick("verifying the data")
    damage = None
    try:
        for dataset in (dataset for dataset in stream.datasets if not dataset.remote):
            with watchdog.allow_slow_io():
                dataset.verify(int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except DataError as error:
        damage = str(error)
    first_damage = next((text for text in gather(damage, group) if text is not None), None)
    if first_damage is not None:
        raise DataError(first_damage)
