"""The only training loop. It knows an engine, a stream of batches and a log; nothing of ranks or layouts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from torch.distributed import ProcessGroup

from data_pipeline.batch import Cursor
from data_pipeline.loader import load
from pretrain.build import Training, starting_weights, versions
from pretrain.checkpoint import change, directory, store
from pretrain.checkpoint.collective import file_group, on_leader, together
from pretrain.checkpoint.files import RECORD
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record, check_same_run
from pretrain.checkpoint.unsaved import Unsaved
from pretrain.config.run_config import RunConfig
from pretrain.data.ledger import planned, summary
from pretrain.data.stream import check_repeats
from pretrain.engine.base import Engine
from pretrain.errors import RunError
from pretrain.evaluate.heldout import heldout_loss
from pretrain.observe import memory
from pretrain.observe.log import RunLog
from pretrain.observe.memory import Peak
from pretrain.observe.points import data_inputs
from pretrain.plan.layout import plan_layout
from pretrain.plan.ramp import batch_sequences, tokens_of
from pretrain.plan.run_length import Segment, segment_after, segments
from pretrain.plan.schedule import learning_rate
from pretrain.process import beats
from pretrain.process.peers import lost_peers
from pretrain.process.signals import StopRequest
from pretrain.process.urgency import Urgency

DONE, STOPPED = 0, 75


def train(run: Training, log: RunLog, stop: StopRequest) -> int:
    """Trains to the end or until asked to stop, from the newest valid checkpoint of `run.dir` if there is one.
    Returns the exit status. Collective."""
    engine, checkpoints = run.engine, Path(run.config.run.dir) / "checkpoints"
    group = file_group(run.config.health.timeout_s)
    start, config = _start(run, log, checkpoints, group)
    step, tokens = start.step, start.tokens
    parts = segments(config)
    _check_to_come(run, config, parts, tokens)
    _, end_tokens = parts[-1].end
    batches = load(
        run.stream,
        Cursor.from_dict(start.cursor),
        partial(_next_sequences, config, parts),
        engine.data_rank,
        engine.data_world,
        config.data.workers,
        config.data.prefetch,
    )
    batches = run.stragglers.reading(batches)
    if tokens >= end_tokens:
        log.finished_before(config, step, tokens)
        return DONE
    together("beginning the run", lambda: log.begin(config, step, tokens), group)  # from here on its files change
    log.data(data_inputs(config.data.resolved_sources, run.stream.datasets))
    sources = planned(config, run.stream)
    log.event("planned", sources=[asdict(source) for source in sources])
    if len(sources) > 1 or any(source.epochs > 1 for source in sources):
        log.say(summary(sources))
    for note in run.notes:
        log.warn(note)
    if step:
        log.event("resumed", step=step, tokens=tokens, written_on=start.layout, continued_on=str(run.layout))
    log.changed(step)
    stopping, save_seconds = False, 0.0
    saver = Saver(
        checkpoints,
        config.checkpoint.keep,
        config.checkpoint.in_flight,
        config.health.timeout_s,
        before=log.before_save,
        saved=lambda saved: log.event("saved", **vars(saved)),
        failed=lambda failure: log.alarm(failure.sentence, "save_failed", **vars(failure)),
        warn=log.warn,
        unsaved=Unsaved(step, config.checkpoint.limit_steps),
    )
    with _told_of_lost_peers(lambda: step, checkpoints), saver, beats.watched():
        saver.reserve(engine.state())
        while tokens < end_tokens and not stopping:
            beats.beat(f"step {step + 1}", step + 1)
            run.stragglers.begin()
            started = time.perf_counter()
            batch, part = next(batches), segment_after(parts, tokens)
            step += 1
            tokens = tokens_of(config, batch.cursor.samples)
            rate = learning_rate(part.config, (step, tokens), part.end)
            result = engine.train_step(batch, rate, step)
            seconds = time.perf_counter() - started
            asked = Urgency.STOP if stop.requested else Urgency.NONE
            urgency, peak = _agree(engine, max(asked, saver.urgency(step), log.urgency()))
            beats.met()
            for sentence in run.stragglers.end(step):
                log.warn(sentence)
            log.step(step, tokens, batch, result, rate, seconds, save_seconds, peak)
            if result.skipped and not result.lowered_scale and config.health.stop_on_nan:
                raise RunError(
                    f"step {step}: the loss or gradient is not finite (loss sum {result.loss_sum}, gradient norm "
                    f"{result.grad_norm}); no update was made. The last checkpoint is from before: lower the learning "
                    "rate, or set health.stop_on_nan=false to skip such steps"
                )
            finished, stopping = tokens >= end_tokens, urgency is Urgency.STOP
            if finished or _due(step, config.evaluate.every_steps):
                heldout = heldout_loss(engine, run.heldout, run.recipe, config.evaluate.sequences)
                log.heldout(step, tokens, heldout)
                if run.tasks is not None:
                    log.tasks(step, tokens, run.tasks())
            save_seconds = 0.0
            surely = finished or urgency >= Urgency.STOP
            if surely:
                beats.beat("recording the run")
                together("recording the run", log.check, group)
            if surely or urgency is Urgency.SAVE or _due(step, config.checkpoint.every_steps):
                beats.beat("saving")
                save = saver.save_surely if surely else saver.save
                record = _record(run, config, step, tokens, batch.cursor)
                save_seconds = save(engine.state(), record, run.tokenizer)
            if surely:
                together("recording the run", log.settle, group)
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
        lost = lost_peers(error, f" at step {step():,}", _then(checkpoints))
        if lost is None:
            raise
        raise lost from error


def _then(checkpoints: Path) -> str:
    """What the next start does."""
    try:
        kept = [path.name.removeprefix("step-") for path in directory.complete(checkpoints)]
    except OSError:
        return "the same command goes on once the disk can be read"
    return f"the same command goes on from step {int(kept[-1]):,}" if kept else "the same command begins again"


def _agree(engine: Engine, asked: Urgency) -> tuple[Urgency, Peak]:
    """The most urgent that a rank asks for, and the most memory that one holds: one exchange for both. Collective."""
    urgency, *peak = engine.largest(np.array([float(asked), *memory.peak().encode()]))
    return Urgency(int(urgency)), Peak.decode(np.array(peak))


def _start(run: Training, log: RunLog, checkpoints: Path, group: ProcessGroup) -> tuple[Record, RunConfig]:
    """Where to go on from: the newest valid checkpoint, loaded into the engine, or the beginning: weights drawn from
    the seed, or those of another run. And the config to go on with, which has what was changed in the run's middle."""
    beats.beat("looking for a checkpoint to go on from")
    checkpoint = store.newest_valid(checkpoints, log.warn, group)
    if checkpoint is None:
        config = change.settle(run.config, None, ()).config
        beats.beat("drawing the initial weights")
        run.engine.initialise()
        weights = starting_weights(run.config, run.heldout)
        if weights is not None:
            store.load(weights, {k: part for k, part in run.engine.state().items() if k.startswith("model/")}, group)
            run.engine.state_loaded(0)
            log.event("started_from", checkpoint=str(weights))
        return _record(run, config, 0, 0, run.stream.cursor(0)), config
    record = Record.read(checkpoint / RECORD)
    found = on_leader("looking for changes of the run", lambda: change.recorded(checkpoints.parent), group)
    settled = change.settle(run.config, record, found)
    for dropped in settled.dropped:
        log.warn(f"the change '{dropped.why}' of step {dropped.step}, which lies ahead, is dropped for the new one")
    check_same_run(record, settled.config)
    beats.beat("loading the checkpoint")
    store.load(checkpoint, run.engine.state(), group)
    run.engine.state_loaded(record.updates, record.loss_scale)
    return record, settled.config


def _check_to_come(run: Training, config: RunConfig, parts: list[Segment], tokens: int) -> None:
    """That settings which were changed suit the layout and the data, before the run's files say that they were."""
    if config.run.changes:
        check_repeats(config, run.stream)
        for part in parts[parts.index(segment_after(parts, tokens)) :]:
            plan_layout(part.config, run.layout.world)


def _next_sequences(config: RunConfig, parts: list[Segment], samples: int) -> int:
    tokens = tokens_of(config, samples)
    return batch_sequences(segment_after(parts, tokens).config.batch, tokens)


def _record(run: Training, config: RunConfig, step: int, tokens: int, cursor: Cursor) -> Record:
    engine = run.engine
    scale = engine.loss_scale.state if engine.loss_scale is not None else None
    tree = config.model_dump(mode="json")
    return Record(step, engine.updates, tokens, cursor.to_dict(), tree, str(run.layout), versions(), scale)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
