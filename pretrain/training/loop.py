"""The only training loop. It knows an engine, a stream of batches and a log; nothing of ranks or layouts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from pretrain.checkpoint import directory
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.unsaved import Unsaved
from pretrain.data.ledger import planned, summary
from pretrain.data.stream import skipping
from pretrain.engine.base import Engine
from pretrain.engine.collective import file_group, run_on_all_ranks
from pretrain.errors import RunError
from pretrain.evaluate.heldout import heldout_loss
from pretrain.observe import memory
from pretrain.observe.log import RunLog
from pretrain.observe.memory import Peak
from pretrain.observe.points import data_inputs
from pretrain.process import watchdog
from pretrain.process.peers import lost_peers
from pretrain.process.signals import StopRequest
from pretrain.process.urgency import Urgency
from pretrain.run_length.ramp import tokens_of
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import segment_after, segments
from pretrain.training.bad_steps import BadSteps, check_heldout, check_trained
from pretrain.training.build import Training
from pretrain.training.resume import batches_from, check_to_come, record_of, resume

DONE, STOPPED = 0, 75


def train(run: Training, log: RunLog, stop: StopRequest) -> int:
    """Trains to the end or until asked to stop, from the newest valid checkpoint of `run.dir` if there is one.
    Returns the exit status. Collective."""
    engine, checkpoints = run.engine, Path(run.config.run.dir) / "checkpoints"
    group = file_group(run.config.health.timeout_s)
    start, config = resume(run, log, checkpoints, group)
    step, tokens, stream = start.step, start.tokens, skipping(run.stream, config)
    parts = segments(config)
    check_to_come(run, config, parts, tokens)
    _, end_tokens = parts[-1].end
    batches, bad_steps = batches_from(run, config, parts, start, stream), BadSteps(run, log, config, stream, start)
    if tokens >= end_tokens:
        log.finished_before(config, step, tokens)
        return DONE
    run_on_all_ranks(
        "beginning the run", lambda: log.begin(config, step, tokens), group
    )  # from here on its files change
    log.data(data_inputs(config.data.resolved_sources, run.stream.datasets))
    sources = planned(config, stream)
    log.event("planned", sources=[asdict(source) for source in sources])
    if len(sources) > 1 or any(source.epochs > 1 for source in sources):
        log.say(summary(sources))
    for note in run.notes:
        log.warn(note)
    if step:
        log.event("resumed", step=step, tokens=tokens, written_on=start.layout, continued_on=str(run.layout))
    log.changed(step)
    bad_steps.returned(step)
    stopping, save_seconds, largest_norm = False, 0.0, None
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
    with _told_of_lost_peers(lambda: step, checkpoints), saver, watchdog.stop_on_error():
        saver.reserve(engine.state())
        while tokens < end_tokens and not stopping:
            watchdog.kick(f"step {step + 1}", step + 1)
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
            watchdog.collective_done()
            for sentence in run.stragglers.end(step):
                log.warn(sentence)
            log.step(step, tokens, batch, result, rate, seconds, save_seconds, peak)
            finished, stopping = tokens >= end_tokens, urgency is Urgency.STOP
            surely = finished or urgency >= Urgency.STOP
            saves = surely or urgency is Urgency.SAVE or _due(step, config.checkpoint.every_steps)
            without = bad_steps.judge(step, batch, result, saves)
            if without is not None:
                saver.drain()  # as the newest may still be on its way
                run_on_all_ranks(
                    "going back", partial(log.went_back, without, step - 1), group
                )  # before all that follows
                start, config = resume(run, log, checkpoints, group)  # as after a crash
                step, tokens, stream, save_seconds = start.step, start.tokens, skipping(run.stream, config), 0.0
                batches = batches_from(run, config, parts, start, stream)
                bad_steps = BadSteps(run, log, config, stream, start)
                run_on_all_ranks("going back", partial(log.went_back, config, step), group)
                bad_steps.returned(step)
                stopping = False  # the next step asks again, and the run saves after it
                continue
            if result.skipped and not result.lowered_scale and config.health.stop_on_nan:
                raise RunError(
                    f"step {step}: the loss or gradient is not finite (loss sum {result.loss_sum}, gradient norm "
                    f"{result.grad_norm}); no update was made. The last checkpoint is from before: lower the learning "
                    "rate, or set health.stop_on_nan=false to skip such steps"
                )
            if not result.skipped:
                largest_norm = max(largest_norm or 0.0, result.grad_norm)
            if finished:
                check_trained(step, engine.updates, largest_norm, config)
            if finished or _due(step, config.evaluate.every_steps):
                heldout = heldout_loss(engine, run.stream.datasets, run.recipe, config.evaluate.sequences)
                log.heldout(step, tokens, heldout)
                if finished or config.health.stop_on_nan:
                    check_heldout(step, heldout.loss)
                if run.tasks is not None:
                    log.tasks(step, tokens, run.tasks())
            save_seconds = 0.0
            if surely:
                watchdog.kick("recording the run")
                run_on_all_ranks("recording the run", log.check, group)
            if saves:
                watchdog.kick("saving")
                save = saver.save_surely if surely else saver.save
                record = record_of(run, config, step, tokens, batch.cursor, bad_steps.recent)
                save_seconds = save(engine.state(), record, run.tokenizer)
            if surely:
                run_on_all_ranks("recording the run", log.settle, group)
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


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
