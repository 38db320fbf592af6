"""The only training loop. It knows an engine, a stream of batches and a log; nothing of ranks or layouts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.batch import Batch, Cursor
from data_pipeline.loader import load
from pretrain.bad_steps import BadSteps
from pretrain.build import Training, starting_weights, versions
from pretrain.checkpoint import change, directory, skips, store
from pretrain.checkpoint.collective import file_group, on_leader, together
from pretrain.checkpoint.files import RECORD
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.run_config import RunConfig
from pretrain.data.ledger import planned, summary
from pretrain.data.stream import check_repeats, skipping
from pretrain.engine.base import Engine
from pretrain.errors import RunError
from pretrain.evaluate.heldout import heldout_loss
from pretrain.observe import memory
from pretrain.observe.log import RunLog
from pretrain.observe.memory import Peak
from pretrain.observe.points import data_inputs
from pretrain.observe.spikes import Recent
from pretrain.plan.layout import plan_layout
from pretrain.plan.ramp import batch_sequences, tokens_of
from pretrain.plan.run_length import Segment, segment_after, segments
from pretrain.plan.schedule import learning_rate
from pretrain.process.peers import lost_peers
from pretrain.process.signals import StopRequest

DONE, STOPPED = 0, 75


def train(run: Training, log: RunLog, stop: StopRequest) -> int:
    """Trains to the end or until asked to stop, from the newest valid checkpoint of `run.dir` if there is one.
    Returns the exit status. Collective."""
    engine, checkpoints = run.engine, Path(run.config.run.dir) / "checkpoints"
    start, config = _start(run, log, checkpoints)
    step, tokens = start.step, start.tokens
    parts = segments(config)
    _check_to_come(run, config, parts, tokens)
    _, end_tokens = parts[-1].end
    batches, bad_steps = _from(run, log, config, parts, start)
    if tokens >= end_tokens:
        log.finished_before(config, step, tokens)
        return DONE
    log.begin(config, step, tokens)  # from here on the run's files change
    log.data(data_inputs(config.data.resolved_sources, run.stream.datasets))
    sources = planned(config, skipping(run.stream, config))
    log.event("planned", sources=[asdict(source) for source in sources])
    if len(sources) > 1 or any(source.epochs > 1 for source in sources):
        log.say(summary(sources))
    for note in run.notes:
        log.warn(note)
    if step:
        log.event("resumed", step=step, tokens=tokens, written_on=start.layout, continued_on=str(run.layout))
    log.changed(step)
    bad_steps.returned(step)
    stopping, save_seconds = False, 0.0
    saver = Saver(
        checkpoints,
        config.checkpoint.keep,
        config.checkpoint.in_flight,
        config.health.timeout_s,
        saved=lambda saved: log.event("saved", **vars(saved)),
        warn=log.warn,
    )
    with _told_of_lost_peers(lambda: step, checkpoints), saver:
        saver.reserve(engine.state())
        while tokens < end_tokens and not stopping:
            started = time.perf_counter()
            batch, part = next(batches), segment_after(parts, tokens)
            step += 1
            tokens = tokens_of(config, batch.cursor.samples)
            rate = learning_rate(part.config, (step, tokens), part.end)
            result = engine.train_step(batch, rate, step)
            seconds = time.perf_counter() - started
            stopping, peak = _agree(engine, stop.requested or saver.failed)
            log.step(step, tokens, batch, result, rate, seconds, save_seconds, peak)
            finished = tokens >= end_tokens
            saves = finished or stopping or _due(step, config.checkpoint.every_steps)
            without = bad_steps.judge(step, batch, result, saves)
            if without is not None:
                saver.wait()  # as the newest may still be on its way
                together("going back", partial(log.went_back, without, step - 1))  # on the disk before all that follows
                start, config = _start(run, log, checkpoints)  # as after a crash
                step, tokens, save_seconds = start.step, start.tokens, 0.0
                batches, bad_steps = _from(run, log, config, parts, start)
                together("going back", partial(log.went_back, config, step))
                bad_steps.returned(step)
                stopping = False  # the next step asks again, and the run saves after it
                continue
            if result.skipped and not result.lowered_scale and config.health.stop_on_nan:
                raise RunError(
                    f"step {step}: the loss or gradient is not finite (loss sum {result.loss_sum}, gradient norm "
                    f"{result.grad_norm}); no update was made. The last checkpoint is from before: lower the learning "
                    "rate, or set health.stop_on_nan=false to skip such steps"
                )
            if stopping:
                saver.wait()  # raises on every rank if a save failed on one
            if finished or _due(step, config.evaluate.every_steps):
                heldout = heldout_loss(engine, run.heldout, run.recipe, config.evaluate.sequences)
                log.heldout(step, tokens, heldout)
                if run.tasks is not None:
                    log.tasks(step, tokens, run.tasks())
            save_seconds = 0.0
            if saves:
                started = time.perf_counter()
                log.sync()
                saver.save(
                    engine.state(), _record(run, config, step, tokens, batch.cursor, bad_steps.recent), run.tokenizer
                )
                save_seconds = time.perf_counter() - started
            if segment_after(parts, tokens) is not part and not stopping:
                log.changed(step)
    if tokens < end_tokens:
        log.stopped(step, tokens)
        return STOPPED
    log.finished(step, tokens)
    return DONE


@contextmanager
def _told_of_lost_peers(step: Callable[[], int], checkpoints: Path) -> Iterator[None]:
    """Inside, an error which means that other ranks are gone becomes one that says at which step, and from where to go
    on."""
    try:
        yield
    except Exception as error:
        kept = [path.name.removeprefix("step-") for path in directory.complete(checkpoints)]
        then = f"the same command goes on from step {int(kept[-1]):,}" if kept else "the same command begins again"
        lost = lost_peers(error, f" at step {step():,}", then)
        if lost is None:
            raise
        raise lost from error


def _agree(engine: Engine, stopping: bool) -> tuple[bool, Peak]:
    """Whether any rank is to stop, and the most memory that one has held: one exchange for both. Collective."""
    stops, *peak = engine.largest(np.array([float(stopping), *memory.peak().encode()]))
    return bool(stops), Peak.decode(np.array(peak))


def _from(
    run: Training, log: RunLog, config: RunConfig, parts: list[Segment], start: Record
) -> tuple[Iterator[Batch], BadSteps]:
    """The batches that follow `start`, and what judges their steps."""
    stream = skipping(run.stream, config)
    batches = load(
        stream,
        Cursor.from_dict(start.cursor),
        partial(_next_sequences, config, parts),
        run.engine.data_rank,
        run.engine.data_world,
        config.data.workers,
        config.data.prefetch,
    )
    return batches, BadSteps(run, log, config, stream, start.recent)


def _start(run: Training, log: RunLog, checkpoints: Path) -> tuple[Record, RunConfig]:
    """Where to go on from: the newest valid checkpoint, loaded into the engine, or the beginning: weights drawn from
    the seed, or those of another run. And the config to go on with, which has what was changed in the run's middle, and
    which samples it leaves out."""
    group = file_group(run.config.health.timeout_s)
    checkpoint = store.newest_valid(checkpoints, log.warn, group)
    found = on_leader("looking for what the run records", lambda: skips.recorded(checkpoints.parent), group)
    if checkpoint is None:
        config = skips.settle(change.settle(run.config, None, ()).config, None, found, log.warn)
        run.engine.initialise()
        weights = starting_weights(run.config, run.heldout)
        if weights is not None:
            store.load(weights, {k: part for k, part in run.engine.state().items() if k.startswith("model/")}, group)
            run.engine.state_loaded(0)
            log.event("started_from", checkpoint=str(weights))
        return _record(run, config, 0, 0, run.stream.cursor(0)), config
    record = Record.read(checkpoint / RECORD)
    changes = on_leader("looking for changes of the run", lambda: change.recorded(checkpoints.parent), group)
    settled = change.settle(run.config, record, changes)
    for dropped in settled.dropped:
        log.warn(f"the change '{dropped.why}' of step {dropped.step}, which lies ahead, is dropped for the new one")
    config = skips.settle(settled.config, record, found, log.warn)
    check_same_run(record, config)
    store.load(checkpoint, run.engine.state(), group)
    run.engine.state_loaded(record.updates, record.loss_scale)
    return record, config


def _check_to_come(run: Training, config: RunConfig, parts: list[Segment], tokens: int) -> None:
    """That settings which were changed suit the layout and the data, before the run's files say that they were."""
    if config.run.changes:
        check_repeats(config, run.stream)
        for part in parts[parts.index(segment_after(parts, tokens)) :]:
            plan_layout(part.config, run.layout.world)


def _next_sequences(config: RunConfig, parts: list[Segment], samples: int) -> int:
    tokens = tokens_of(config, samples)
    return batch_sequences(segment_after(parts, tokens).config.batch, tokens)


def _record(
    run: Training, config: RunConfig, step: int, tokens: int, cursor: Cursor, recent: Recent | None = None
) -> Record:
    engine = run.engine
    scale = engine.loss_scale.state if engine.loss_scale is not None else None
    tree = config.model_dump(mode="json")
    return Record(step, engine.updates, tokens, cursor.to_dict(), tree, str(run.layout), versions(), scale, recent)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
