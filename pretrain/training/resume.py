"""The state that a run resumes from: its newest valid checkpoint, or its beginning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from data_pipeline.batch import Batch, Cursor
from data_pipeline.loader import load
from pretrain.checkpoint import store
from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.identity import versions
from pretrain.checkpoint.one_model import mtp_tensors
from pretrain.checkpoint.replaced_head import replaced_head
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record, check_same_run, config_of
from pretrain.config.run_config import RunConfig
from pretrain.config.start import teacher_checkpoint
from pretrain.data.stream import Stream, check_repeats, skip_samples
from pretrain.engine.base import StepResult
from pretrain.engine.collective import run_on_all_ranks, run_on_rank_0
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.generator import added_tables
from pretrain.model_spec.modules import parameter_specs
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.model_spec.start_layers import teacher_names
from pretrain.observe.spikes import Recent
from pretrain.process import watchdog
from pretrain.run_dir.paths import RECORD
from pretrain.run_length.ramp import batch_sequences, tokens_of
from pretrain.run_length.segments import Segment, segment_after, segments
from pretrain.training.bad_steps import BadSteps
from pretrain.training.best import Evaluations, read_evaluations
from pretrain.training.build import TrainingRun, starting_weights
from pretrain.training.changes import recorded_changes, resolve_changes
from pretrain.training.session import Session
from pretrain.training.skips import recorded_config, resolve_skips


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run after `step` optimizer steps, ready for the next one. The engine holds the tensors that go with it."""

    config: RunConfig
    """the settings that the run began with, its changes and its skipped samples"""
    segments: Sequence[Segment]
    """the settings in force, by step"""
    stream: Stream
    """the samples of the run, without the skipped ones"""
    batches: Iterator[Batch]
    """the global batches that follow, shared by all states of the same stream"""
    bad_steps: BadSteps
    step: int
    tokens: int
    cursor: Cursor
    written_on: str
    """the layout that wrote the checkpoint"""
    evaluations: Evaluations | None = None
    """the figure of `checkpoint.best` so far; None: no checkpoint is the best one"""
    largest_norm: float | None = None
    """largest gradient norm of an update since this start of the run; None: there was no update"""

    @property
    def segment(self) -> Segment:
        """The settings of the next step."""
        return segment_after(self.segments, self.tokens)

    @property
    def is_finished(self) -> bool:
        _, end_tokens = self.segments[-1].end
        return self.tokens >= end_tokens

    @property
    def evaluates(self) -> bool:
        """Whether the model is evaluated at this step."""
        return self.is_finished or is_due(self.step, self.config.evaluate.every_steps)

    @property
    def evaluates_start(self) -> bool:
        """Whether weights of another run are evaluated before they are trained. Not with a task head, which is drawn
        from the seed."""
        run, model = self.config.run, self.config.model
        trained = run.start_from is not None and self.config.finetune.weights != "random"
        return self.step == 0 and trained and model.task_head is None

    @property
    def may_be_best(self) -> bool:
        """Whether this step may turn out to be the best."""
        return self.evaluations is not None and self.evaluates

    @property
    def is_best(self) -> bool:
        """Whether this step, once evaluated, is the best."""
        return self.evaluations is not None and self.evaluations.best == self.step

    def next_batch(self) -> tuple["RunState", Batch]:
        """The state after the next step, and the global batch of that step."""
        batch = next(self.batches)
        tokens = tokens_of(self.config, batch.cursor.samples)
        return replace(self, step=self.step + 1, tokens=tokens, cursor=batch.cursor), batch

    def updated(self, result: StepResult) -> "RunState":
        """This state, where the step to it had `result`."""
        if result.skipped:
            return self
        return replace(self, largest_norm=max(self.largest_norm or 0.0, result.grad_norm))


def is_due(step: int, every_steps: int) -> bool:
    """Whether something is to be done after `step` that is done every so many steps; 0: never."""
    return every_steps > 0 and step % every_steps == 0


def resume(session: Session) -> RunState:
    """Loads the newest valid checkpoint into the engine; or that of the run which this one branches from; or draws the
    initial weights, or takes those of another run. Returns the state to continue from. Collective."""
    watchdog.kick("looking for a checkpoint to resume from")
    checkpoint = store.newest_valid(session.checkpoints, session.log.warn, session.group)
    return continue_from(session, start_of_run(session) if checkpoint is None else checkpoint)


def start_of_run(session: Session) -> Path | None:
    """The checkpoint of another run that this one branches from; None: there is none. Collective."""
    if session.run.config.run.branch_from is None:
        return None
    branch = locate(Path(session.run.config.run.branch_from))
    checkpoint = store.first_valid(branch, session.log.warn, session.group)
    session.log.event("branched", checkpoint=str(checkpoint))
    return checkpoint


def continue_from(session: Session, checkpoint: Path | None) -> RunState:
    """Loads a verified checkpoint into the engine; None: draws the initial weights, or takes those of another run.
    Returns the state to continue from. Collective."""
    run, log, group = session.run, session.log, session.group
    run_dir = session.checkpoints.parent
    recorded = run_on_rank_0("reading the run's config", lambda: recorded_config(run_dir), group)
    if checkpoint is None:
        config = resolve_skips(resolve_changes(run.config, None, ()).config, None, recorded, log.warn)
        _initialise(session)
        cursor = run.stream.cursor(0)
        return _state(session, config, step=0, tokens=0, cursor=cursor, written_on=str(run.layout))
    record = Record.read(checkpoint / RECORD)
    changes = run_on_rank_0("reading the run's changes", lambda: recorded_changes(run_dir), group)
    resolved = resolve_changes(run.config, record, changes)
    for replaced in resolved.replaced:
        log.warn(f"the pending change '{replaced.why}' of step {replaced.step} is replaced by the new one")
    config = resolve_skips(resolved.config, record, recorded, log.warn)
    check_same_run(record, config)
    load_state(session, checkpoint, record)
    return _state(
        session,
        config,
        step=record.step,
        tokens=record.tokens,
        cursor=Cursor.from_dict(record.cursor),
        written_on=record.layout,
        recent=record.recent,
    )


def load_state(session: Session, checkpoint: Path, record: Record) -> None:
    """Loads a verified checkpoint of the run into the engine. Collective."""
    watchdog.kick("loading the checkpoint")
    store.load(checkpoint, session.run.engine.state(), session.group)
    session.run.engine.state_loaded(record.updates, record.loss_scale)


def roll_back(session: Session, state: RunState, saver: Saver, config: RunConfig) -> RunState:
    """Returns the state before a bad step, as a start after a crash would, with the samples that `config` skips.
    Collective."""
    saver.drain()  # the newest checkpoint may still be in flight
    # The config is on the disk before anything depends on it.
    run_on_all_ranks("rolling back", lambda: session.log.rolled_back(config, state.step - 1), session.group)
    restored = resume(session)
    run_on_all_ranks("rolling back", lambda: session.log.rolled_back(restored.config, restored.step), session.group)
    restored.bad_steps.record_rollbacks(restored.step)
    return replace(restored, largest_norm=state.largest_norm)


def record_of(run: TrainingRun, state: RunState) -> Record:
    """The record of a checkpoint of `state`."""
    engine = run.engine
    return Record(
        step=state.step,
        updates=engine.updates,
        tokens=state.tokens,
        cursor=state.cursor.to_dict(),
        config=state.config.model_dump(mode="json"),
        layout=str(run.layout),
        versions=versions(),
        loss_scale=engine.loss_scale.state,
        recent=state.bad_steps.recent,
    )


def _initialise(session: Session) -> None:
    """Draws the weights from the seed, or loads those of `run.start_from`. Collective."""
    run = session.run
    watchdog.kick("drawing the initial weights")
    run.engine.initialise()
    if (layers := run.config.distillation.start_layers) is not None:
        _begin_with_teacher(session, layers)
    weights = starting_weights(run.config, run.heldout)
    if weights is not None:
        model = {name: part for name, part in run.engine.state().items() if name.startswith("model/")}
        fresh, unused = replaced_head(weights, run.config.model)
        start = config_of(Record.read(weights / RECORD))
        sums = added_tables(start) if run.config.generator is None else {}
        added = {f"model/{name}": f"model/{other}" for name, other in sums.items()}
        read = {name: part for name, part in model.items() if name not in fresh}
        store.load(weights, read, session.group, unused, added)
        run.engine.state_loaded(0)
        session.log.event("started_from", checkpoint=str(weights))


def _begin_with_teacher(session: Session, layers: Sequence[int]) -> None:
    """Gives the model the weights of some of its teacher's layers (`distillation.start_layers`)."""
    run, settings = session.run, session.run.config.distillation
    assert settings.teacher is not None, "start_layers are the teacher's"
    assert settings.model is not None, "the teacher is resolved"
    names = teacher_names(run.config.model, settings.model, layers)
    state = run.engine.state()
    begun = {f"model/{name}": state[f"model/{own}"] for own, name in names.items() if f"model/{own}" in state}
    every = {spec.name for spec in parameter_specs(settings.model)} | router_bias_shapes(settings.model).keys()
    checkpoint = teacher_checkpoint(settings.teacher)
    unread = {f"model/{name}" for name in every} - {f"model/{name}" for name in names.values()}
    unread |= mtp_tensors(checkpoint)
    store.load(checkpoint, begun, session.group, unread)
    run.engine.state_loaded(0)
    session.log.event("started_from", checkpoint=str(checkpoint))


def _state(
    session: Session,
    config: RunConfig,
    *,
    step: int,
    tokens: int,
    cursor: Cursor,
    written_on: str,
    recent: Recent | None = None,
) -> RunState:
    """Raises ConfigError for changed settings that do not suit the layout or the data, before any file of the run says
    that they were changed."""
    run = session.run
    engine, stream, run_segments = run.engine, skip_samples(run.stream, config), segments(config)
    if config.run.changes:
        check_repeats(config, run.stream)
        for segment in run_segments[run_segments.index(segment_after(run_segments, tokens)) :]:
            plan_layout(segment.config, run.layout.world)
    batches = load(
        stream,
        cursor,
        partial(_next_batch_size, config, run_segments),
        data_rank=engine.data_rank,
        data_world=engine.data_world,
        workers=config.data.workers,
        prefetch=config.data.prefetch,
    )
    best, evaluations = config.checkpoint.best, None
    if best is not None:
        evaluations = run_on_rank_0(
            "reading the run's evaluations",
            lambda: read_evaluations(session.checkpoints.parent, best, step),
            session.group,
        )
    return RunState(
        config=config,
        segments=run_segments,
        stream=stream,
        batches=run.stragglers.reading(batches),
        bad_steps=BadSteps(session, config, stream, recent),
        step=step,
        tokens=tokens,
        cursor=cursor,
        written_on=written_on,
        evaluations=evaluations,
    )


def _next_batch_size(config: RunConfig, run_segments: Sequence[Segment], samples: int) -> int:
    """Sequences in the global batch that follows `samples` samples."""
    tokens = tokens_of(config, samples)
    return batch_sequences(segment_after(run_segments, tokens).config.batch, tokens)
