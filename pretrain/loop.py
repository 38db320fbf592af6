"""The only training loop. It knows an engine, a stream of batches and a log; nothing of ranks or layouts."""

import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from data_pipeline.batch import Cursor
from data_pipeline.loader import load
from pretrain.build import Training, starting_weights, versions
from pretrain.checkpoint import store
from pretrain.checkpoint.collective import file_group
from pretrain.checkpoint.files import RECORD
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record, check_same_run
from pretrain.data.ledger import summary
from pretrain.engine.base import Engine
from pretrain.errors import RunError
from pretrain.evaluate.heldout import heldout_loss
from pretrain.observe import memory
from pretrain.observe.log import RunLog
from pretrain.observe.memory import Peak
from pretrain.plan.ramp import batch_sequences, tokens_of
from pretrain.plan.run_length import run_length
from pretrain.plan.schedule import learning_rate
from pretrain.process.signals import StopRequest

DONE, STOPPED = 0, 75


def train(run: Training, log: RunLog, stop: StopRequest) -> int:
    """Trains to the end or until asked to stop, from the newest valid checkpoint of `run.dir` if there is one.
    Returns the exit status. Collective."""
    config, engine = run.config, run.engine
    checkpoints = Path(config.run.dir) / "checkpoints"
    end = run_length(config)
    _, end_tokens = end
    start = _start(run, log, checkpoints)
    step, tokens = start.step, start.tokens
    batches = load(
        run.stream,
        Cursor.from_dict(start.cursor),
        lambda samples: batch_sequences(config.batch, tokens_of(config, samples)),
        engine.data_rank,
        engine.data_world,
        config.data.workers,
        config.data.prefetch,
    )
    if tokens >= end_tokens:
        log.finished_before(config, step, tokens)
        return DONE
    log.begin(config, step, tokens)  # from here on the run's files change
    log.event("planned", sources=[asdict(source) for source in run.planned])
    if len(run.planned) > 1 or any(source.epochs > 1 for source in run.planned):
        log.say(summary(run.planned))
    for note in run.notes:
        log.warn(note)
    if step:
        log.event("resumed", step=step, tokens=tokens, written_on=start.layout, continued_on=str(run.layout))
    stopping, save_seconds = False, 0.0
    with Saver(
        checkpoints,
        config.checkpoint.keep,
        config.checkpoint.in_flight,
        config.health.timeout_s,
        saved=lambda saved: log.event("saved", **vars(saved)),
        warn=log.warn,
    ) as saver:
        saver.reserve(engine.state())
        while tokens < end_tokens and not stopping:
            started = time.perf_counter()
            batch = next(batches)
            step += 1
            tokens = tokens_of(config, batch.cursor.samples)
            rate = learning_rate(config, (step, tokens), end)
            result = engine.train_step(batch, rate, step)
            seconds = time.perf_counter() - started
            stopping, peak = _agree(engine, stop.requested or saver.failed)
            log.step(step, tokens, batch, result, rate, seconds, save_seconds, peak)
            if result.skipped and not result.lowered_scale and config.health.stop_on_nan:
                raise RunError(
                    f"step {step}: the loss or gradient is not finite (loss sum {result.loss_sum}, gradient norm "
                    f"{result.grad_norm}); no update was made. The last checkpoint is from before: lower the learning "
                    "rate, or set health.stop_on_nan=false to skip such steps"
                )
            if stopping:
                saver.wait()  # raises on every rank if a save failed on one
            finished = tokens >= end_tokens
            if finished or _due(step, config.evaluate.every_steps):
                heldout = heldout_loss(engine, run.heldout, run.recipe, config.evaluate.sequences)
                log.heldout(step, tokens, heldout)
            save_seconds = 0.0
            if finished or stopping or _due(step, config.checkpoint.every_steps):
                started = time.perf_counter()
                log.sync()
                saver.save(engine.state(), _record(run, step, tokens, batch.cursor), run.tokenizer)
                save_seconds = time.perf_counter() - started
    if tokens < end_tokens:
        log.stopped(step, tokens)
        return STOPPED
    log.finished(step, tokens)
    return DONE


def _agree(engine: Engine, stopping: bool) -> tuple[bool, Peak]:
    """Whether any rank is to stop, and the most memory that one has held: one exchange for both. Collective."""
    stops, *peak = engine.largest(np.array([float(stopping), *memory.peak().encode()]))
    return bool(stops), Peak.decode(np.array(peak))


def _start(run: Training, log: RunLog, checkpoints: Path) -> Record:
    """Where to go on from: the newest valid checkpoint, loaded into the engine, or the beginning: weights drawn from
    the seed, or those of another run."""
    group = file_group(run.config.health.timeout_s)
    checkpoint = store.newest_valid(checkpoints, log.warn, group)
    if checkpoint is None:
        run.engine.initialise()
        weights = starting_weights(run.config, run.heldout)
        if weights is not None:
            store.load(weights, {k: part for k, part in run.engine.state().items() if k.startswith("model/")}, group)
            run.engine.state_loaded(0)
            log.event("started_from", checkpoint=str(weights))
        return _record(run, 0, 0, run.stream.cursor(0))
    record = Record.read(checkpoint / RECORD)
    check_same_run(record, run.config)
    store.load(checkpoint, run.engine.state(), group)
    run.engine.state_loaded(record.updates, record.loss_scale)
    return record


def _record(run: Training, step: int, tokens: int, cursor: Cursor) -> Record:
    config, engine = run.config.model_dump(mode="json"), run.engine
    scale = engine.loss_scale.state if engine.loss_scale is not None else None
    return Record(step, engine.updates, tokens, cursor.to_dict(), config, str(run.layout), versions(), scale)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
