"""The only training loop. It knows a run, its state and its log; nothing of ranks or layouts."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from torch.profiler import record_function

from data_pipeline.batch import Batch
from data_pipeline.errors import ExitStatus
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.unsaved import Unsaved
from pretrain.data.ledger import planned_usage, summary
from pretrain.engine.base import StepResult
from pretrain.engine.collective import gather, run_on_all_ranks
from pretrain.errors import MiscomputedError
from pretrain.evaluate.heldout import heldout_loss
from pretrain.observe import memory
from pretrain.observe.memory import Peak
from pretrain.observe.points import data_inputs
from pretrain.process import watchdog
from pretrain.process.peers import lost_peers
from pretrain.process.urgency import Urgency
from pretrain.run_dir.paths import checkpoint_step, complete_checkpoints
from pretrain.run_length.schedule import learning_rate
from pretrain.run_length.segments import Segment
from pretrain.training import garbage
from pretrain.training.bad_steps import check_heldout, check_trained, check_updated
from pretrain.training.best import LOSS
from pretrain.training.resume import RunState, is_due, record_of, resume, roll_back
from pretrain.training.session import Session


@dataclass(frozen=True)
class TrainedStep:
    """An optimizer step of the whole run."""

    result: StepResult
    learning_rate: float
    seconds: float


def train(session: Session) -> int:
    """Trains to the end of the run or until a signal requests a stop, from the newest valid checkpoint of `run.dir` if
    there is one. Returns the exit status. Collective."""
    log, state = session.log, resume(session)
    if state.is_finished:
        log.finished_before(state.config, state.step, state.tokens)
        return ExitStatus.DONE
    _begin(session, state)
    stopping, save_seconds = False, 0.0
    with (
        _lost_peers_explained(session, lambda: state.step),
        _saver(session, state) as saver,
        watchdog.stop_on_error(),
        garbage.no_collection_within_steps(),
    ):
        saver.reserve(session.run.engine.state())
        if state.evaluates_start:
            _evaluate(session, replace(state, evaluations=None))  # no checkpoint holds step 0, which could be the best
        while not state.is_finished and not stopping:
            garbage.collect_when_due(state.step)
            watchdog.kick(f"step {state.step + 1}", state.step + 1)
            session.run.stragglers.begin()
            started_s, segment = time.perf_counter(), state.segment
            with session.run.profiler.step(state.step + 1):
                with record_function("step/data"):
                    state, batch = state.next_batch()
                step = make_step(session, state, segment, batch, started_s)
            urgency, peak = _agree(session, saver, state.step)
            log.step(
                state.step, state.tokens, batch, step.result, learning_rate=step.learning_rate, seconds=step.seconds,
                save_seconds=save_seconds, peak=peak,
            )  # fmt: skip
            stopping = urgency is Urgency.STOP
            must_save = state.is_finished or urgency >= Urgency.STOP
            save_now = must_save or urgency is Urgency.SAVE or is_due(state.step, state.config.checkpoint.every_steps)
            rollback_config = state.bad_steps.judge(state.step, batch, step.result, save_now or state.may_be_best)
            if rollback_config is not None:
                state = roll_back(session, state, saver, rollback_config)
                stopping, save_seconds = False, 0.0  # a stop is requested again by the next step, which then saves
                continue
            check_updated(state.step, step.result, state.config)
            state = state.updated(step.result)
            if state.is_finished:
                check_trained(state.step, session.run.engine.updates, state.largest_norm, state.config)
            if state.evaluates:
                state = _evaluate(session, state)
            save_seconds = _save(session, state, saver, must_save) if save_now or state.is_best else 0.0
            if state.segment is not segment and not stopping:
                log.changed(state.step)
    if not state.is_finished:
        log.stopped(state.step, state.tokens)
        return ExitStatus.STOPPED
    log.finished(state.step, state.tokens)
    return ExitStatus.DONE


def _begin(session: Session, state: RunState) -> None:
    """Has the log say what is about to be trained. The run's files change from here on. Collective."""
    run, log = session.run, session.log
    run_on_all_ranks("starting the run", lambda: log.begin(state.config, state.step, state.tokens), session.group)
    if run.attention_line is not None:
        log.say(run.attention_line)
    log.data(data_inputs(state.config.data.resolved_sources, run.stream.datasets))
    sources = planned_usage(state.config, state.stream)
    log.event("planned", sources=[asdict(source) for source in sources])
    if len(sources) > 1 or any(source.epochs > 1 for source in sources):
        log.say(summary(sources))
    for note in run.notes:
        log.warn(note)
    if state.step:
        layouts = {"written_on": state.written_on, "continued_on": str(run.layout)}
        log.event("resumed", step=state.step, tokens=state.tokens, **layouts)
    log.changed(state.step)
    state.bad_steps.record_rollbacks(state.step)


def _saver(session: Session, state: RunState) -> Saver:
    log, config = session.log, state.config
    return Saver(
        session.checkpoints,
        config.checkpoint.keep,
        config.checkpoint.in_flight,
        config.health.timeout_s,
        before=log.before_save,
        saved=lambda saved: log.event("saved", **vars(saved)),
        failed=lambda failure: log.alarm(failure.sentence, "save_failed", **vars(failure)),
        warn=log.warn,
        unsaved=Unsaved(state.step, config.checkpoint.limit_steps),
    )


def make_step(session: Session, state: RunState, segment: Segment, batch: Batch, started_s: float) -> TrainedStep:
    """Makes the step to `state`, with the settings of `segment`. Raises MiscomputedError, and records it, where a
    machine computes wrong (`health.replay_every`). Collective."""
    rate = learning_rate(segment.config, (state.step, state.tokens), segment.end)
    session.run.engine.use_settings(segment.config)
    try:
        result = session.run.engine.train_step(batch, rate, state.step)
    except MiscomputedError as error:
        session.log.event("miscomputed", **error.facts)
        raise
    return TrainedStep(result, rate, time.perf_counter() - started_s)


def _agree(session: Session, saver: Saver, step: int) -> tuple[Urgency, Peak]:
    """The most urgent request of any rank, and the peak memory of the rank with most, in one exchange; then warns of
    stragglers. Collective."""
    requested = Urgency.STOP if session.stop.requested else Urgency.NONE
    requested = max(requested, saver.urgency(step), session.log.urgency())
    urgency, *peak = session.run.engine.largest(np.array([float(requested), *memory.peak().encode()]))
    watchdog.collective_done()
    for sentence in session.run.stragglers.end(step):
        session.log.warn(sentence)
    return Urgency(int(urgency)), Peak.decode(np.array(peak))


def _evaluate(session: Session, state: RunState) -> RunState:
    """Scores held-out data and the tasks of `evaluate.tasks`. Returns the state, which knows the figure of
    `checkpoint.best` then. Raises RunError for a loss that is not finite, at the end of the run or with
    `health.stop_on_nan`. Collective."""
    run, log, config = session.run, session.log, state.config
    figures: Mapping[str, float | None] = {}
    if run.judges is not None and not run.judges.writes_texts:
        judged = run.judges("validation")
        session.validation.clear()
        session.validation[run.engine.updates] = judged
        heldout, figures = judged.heldout, judged.figures
        log.figures(state.step, state.tokens, figures)
    else:
        heldout = heldout_loss(
            run.engine, run.stream.datasets, run.recipe, config.evaluate.sequences, lanes=config.heldout_lanes
        )
    sources = [source.called for source in config.data.resolved_sources]
    log.heldout(state.step, state.tokens, heldout, sources if len(set(sources)) == len(sources) else ())
    if state.is_finished or config.health.stop_on_nan:
        check_heldout(state.step, heldout.loss)
    if run.tasks is not None:
        log.tasks(state.step, state.tokens, run.tasks())
    if state.evaluations is None:
        return state
    figure = state.evaluations.figure
    value = gather({LOSS: heldout.loss, **figures}.get(figure))[0]  # the rank that records it
    state = replace(state, evaluations=state.evaluations.add(state.step, value))
    if value is not None and state.is_best:
        log.best(state.step, figure, value)
    return state


def _save(session: Session, state: RunState, saver: Saver, must_save: bool) -> float:
    """Saves `state`; with `must_save` also waits until the checkpoint and the log are on the disk. Returns the seconds
    that training was paused for the checkpoint. Collective."""
    if must_save:
        watchdog.kick("recording the run")
        run_on_all_ranks("recording the run", session.log.check, session.group)
    watchdog.kick("saving")
    save = saver.save_and_wait if must_save else saver.save
    best_first = state.evaluations.best_first if state.evaluations is not None else ()
    run = session.run
    seconds = save(run.engine.state(), record_of(run, state), run.tokenizer, best_first, run.source_tokenizer)
    if must_save:
        run_on_all_ranks("recording the run", session.log.settle, session.group)
    return seconds


@contextmanager
def _lost_peers_explained(session: Session, step: Callable[[], int]) -> Iterator[None]:
    """Replaces an error which means that other ranks are gone by one that says at which step, and what to do."""
    try:
        yield
    except Exception as error:
        lost = lost_peers(error, f" at step {step():,}", _next_start(session.checkpoints))
        if lost is None:
            raise
        raise lost from error


def _next_start(checkpoints: Path) -> str:
    """Advice on what to do after the run has failed."""
    try:
        complete = complete_checkpoints(checkpoints)
    except OSError:
        return "run the same command again once the disk can be read"
    if not complete:
        return "run the same command again to start over"
    return f"run the same command again to resume from step {checkpoint_step(complete[-1].name):,}"
