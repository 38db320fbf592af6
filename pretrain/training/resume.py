"""Where a run goes on from: its newest valid checkpoint, or the beginning; and what follows from there."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torch.distributed import ProcessGroup

from data_pipeline.batch import Batch, Cursor
from data_pipeline.loader import ChainedStreams, SampleStream, load
from pretrain.checkpoint import store
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.files import RECORD
from pretrain.checkpoint.identity import versions
from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.run_config import RunConfig
from pretrain.data.stream import check_repeats
from pretrain.engine.collective import run_on_rank_0
from pretrain.layout.layout import plan_layout
from pretrain.observe.log import RunLog
from pretrain.observe.spikes import Recent
from pretrain.process import watchdog
from pretrain.run_length.ramp import batch_sequences, tokens_of
from pretrain.run_length.segments import Segment, segment_after
from pretrain.training import changes, skips
from pretrain.training.build import Training, starting_weights


def resume(run: Training, log: RunLog, checkpoints: Path, group: ProcessGroup) -> tuple[Record, RunConfig]:
    """The newest valid checkpoint, loaded into the engine; or that of another run, of which this one is a branch; or
    the beginning: weights drawn from the seed, or those of another run. And the config to go on with, which has what
    was changed in the run's middle, and which samples it leaves out. Collective."""
    watchdog.kick("looking for a checkpoint to go on from")
    checkpoint = store.newest_valid(checkpoints, log.warn, group)
    if checkpoint is None and run.config.run.branch_from is not None:
        checkpoint = store.first_valid(locate(Path(run.config.run.branch_from)), log.warn, group)
        log.event("branched", checkpoint=str(checkpoint))
    found = run_on_rank_0("looking for what the run records", lambda: skips.recorded(checkpoints.parent), group)
    if checkpoint is None:
        config = skips.settle(changes.settle(run.config, None, ()).config, None, found, log.warn)
        watchdog.kick("drawing the initial weights")
        run.engine.initialise()
        weights = starting_weights(run.config, run.heldout)
        if weights is not None:
            store.load(weights, {k: part for k, part in run.engine.state().items() if k.startswith("model/")}, group)
            run.engine.state_loaded(0)
            log.event("started_from", checkpoint=str(weights))
        return record_of(run, config, 0, 0, run.stream.cursor(0)), config
    record = Record.read(checkpoint / RECORD)
    recorded = run_on_rank_0("looking for changes of the run", lambda: changes.recorded(checkpoints.parent), group)
    settled = changes.settle(run.config, record, recorded)
    for dropped in settled.dropped:
        log.warn(f"the change '{dropped.why}' of step {dropped.step}, which lies ahead, is dropped for the new one")
    config = skips.settle(settled.config, record, found, log.warn)
    check_same_run(record, config)
    watchdog.kick("loading the checkpoint")
    store.load(checkpoint, run.engine.state(), group)
    run.engine.state_loaded(record.updates, record.loss_scale)
    return record, config


def batches_from(
    run: Training, config: RunConfig, parts: list[Segment], start: Record, stream: SampleStream | ChainedStreams
) -> Iterator[Batch]:
    """Those of `stream` that follow `start`, as long as they are asked for."""
    return run.stragglers.reading(
        load(
            stream,
            Cursor.from_dict(start.cursor),
            partial(_next_sequences, config, parts),
            run.engine.data_rank,
            run.engine.data_world,
            config.data.workers,
            config.data.prefetch,
        )
    )


def check_to_come(run: Training, config: RunConfig, parts: list[Segment], tokens: int) -> None:
    """That settings which were changed suit the layout and the data, before the run's files say that they were."""
    if config.run.changes:
        check_repeats(config, run.stream)
        for part in parts[parts.index(segment_after(parts, tokens)) :]:
            plan_layout(part.config, run.layout.world)


def record_of(
    run: Training, config: RunConfig, step: int, tokens: int, cursor: Cursor, recent: Recent | None = None
) -> Record:
    """What a checkpoint after `step` steps says of the run."""
    engine = run.engine
    scale = engine.loss_scale.state if engine.loss_scale is not None else None
    tree = config.model_dump(mode="json")
    return Record(step, engine.updates, tokens, cursor.to_dict(), tree, str(run.layout), versions(), scale, recent)


def _next_sequences(config: RunConfig, parts: list[Segment], samples: int) -> int:
    tokens = tokens_of(config, samples)
    return batch_sequences(segment_after(parts, tokens).config.batch, tokens)
