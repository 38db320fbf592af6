"""Bad steps of a run (`health.spike`): each is reported with its documents, and under `act` its samples are skipped and
the run rolls back. All ranks decide alike, as the numbers of a step are the same on all.
"""

import math
from collections import Counter

from data_pipeline.batch import Batch
from data_pipeline.errors import DataError
from pretrain.checkpoint.finite import not_finite
from pretrain.config.health import SpikesAct, SpikesOff
from pretrain.config.run_config import RunConfig
from pretrain.config.skip import Skip
from pretrain.data.stream import Stream
from pretrain.data.trace import trace_documents
from pretrain.engine.base import StepResult
from pretrain.errors import RunError
from pretrain.observe.spikes import Recent, Spike, SpikeWatch
from pretrain.run_dir.records import read_events
from pretrain.training.session import Session
from pretrain.training.skips import add_skip, why_not_again, with_skips

_NUM_NAMED = 3  # documents in a sentence


def check_updated(step: int, result: StepResult, config: RunConfig) -> None:
    """Raises RunError with `health.stop_on_nan` for a step whose update was skipped, unless the loss scale of fp16 was
    too high."""
    if result.skipped and not result.lowered_scale and config.health.stop_on_nan:
        raise RunError(
            f"step {step}: the loss or gradient is not finite (loss sum {result.loss_sum}, gradient norm "
            f"{result.grad_norm}); no update was made. The last checkpoint is from before: lower the learning "
            "rate, or set health.stop_on_nan=false to skip such steps"
        )


def check_heldout(step: int, loss: float) -> None:
    """Raises RunError where the held-out `loss` after `step` is not finite: the weights are worth nothing."""
    if not math.isfinite(loss):
        raise RunError(
            f"step {step}: the held-out loss is {loss}, so nothing is saved. The last checkpoint is from before: "
            "lower the learning rate or the weight decay, or train with precision=fp32 or bf16"
        )


def check_trained(step: int, updates: int, largest_norm: float | None, config: RunConfig) -> None:
    """Raises RunError at the end of a run that has trained nothing: it made no `updates`, or all gradients since its
    start were zero. `largest_norm` is the largest of their norms; None: there were none."""
    if updates and largest_norm != 0:
        return
    cure = "loss_scale.initial" if config.precision == "fp16" else "the data, optimizer.clip_norm and precision"
    why = "every gradient was zero" if updates else "every step was skipped, as its gradient was not finite"
    raise RunError(f"step {step}: the run ends without having trained anything: {why}. Check {cure}")


class BadSteps:
    """The judge of a run's steps. `config` and `stream` are what the run continues with, `recent` the steps before."""

    def __init__(self, session: Session, config: RunConfig, stream: Stream, recent: Recent | None) -> None:
        self._engine, self._log = session.run.engine, session.log
        self._config, self._stream = config, stream
        self._settings = config.health.spike
        self._reported: set[tuple[int, str]] | None = None  # step and data_hash of spikes in events.jsonl; None: unread
        self._watch = None if isinstance(self._settings, SpikesOff) else SpikeWatch(self._settings, recent)

    @property
    def recent(self) -> Recent | None:
        """The values that the next step is judged by, for a checkpoint."""
        return self._watch.recent if self._watch is not None else None

    def judge(self, step: int, batch: Batch, result: StepResult, save_now: bool) -> RunConfig | None:
        """Judges a step, and the tensors that would be saved if `save_now`. Returns the config to roll back with, or
        None if the run continues. Raises RunError where it can do neither. Collective."""
        spike = self._watch.judge(result) if self._watch is not None else None
        bad_tensor = not_finite(self._engine.state()) if save_now else None
        if bad_tensor is not None:
            reason = f"{bad_tensor} is not finite after the update"
        elif spike is not None:
            reason = spike.sentence()
        else:
            return None
        if bad_tensor is not None and not isinstance(self._settings, SpikesAct):
            raise RunError(
                f"step {step}: {reason}, so it is not saved. The last checkpoint is from before: lower the learning "
                "rate, or set health.spike=act to roll back and skip the samples of this step"
            )
        documents = self._report(step, batch, reason, spike)
        if not isinstance(self._settings, SpikesAct):
            return None
        why_not = why_not_again(self._config.run.skipped, step, self._settings)
        if why_not is not None:
            raise RunError(
                f"step {step}: {reason}, {why_not}. Rolling back does not solve a problem of the data or the numbers: "
                f"look at the step's documents ({documents or 'in events.jsonl'}), or lower the learning rate"
            )
        self._log.warn(f"step {step}: {reason}; the run rolls back to before it and skips its samples")
        count = len(batch.sample_ids)
        skip = Skip(step=step, sample=batch.cursor.samples - count, samples=count, why=reason)
        return with_skips(self._config, add_skip(self._config.run.skipped, skip))

    def record_rollbacks(self, step: int) -> None:
        """Writes an event for each skip of the config that has none yet: the run has rolled back to `step` for it."""
        if not self._engine.is_reporter or not self._config.run.skipped:
            return
        events = read_events(self._config.run.dir)
        spikes, rollbacks = (
            Counter((event["step"], event["sample"]) for event in events if event["event"] == kind)
            for kind in ("spike", "rolled_back")
        )
        unrecorded = spikes - rollbacks  # bad batches in a row have the same step and sample, one after the other
        for skip in self._config.run.skipped:
            key = (skip.step, skip.sample)
            if rollbacks[key]:
                rollbacks[key] -= 1
            elif unrecorded[key]:
                unrecorded[key] -= 1
                self._log.event("rolled_back", to_step=step, **skip.model_dump())

    def _report(self, step: int, batch: Batch, reason: str, spike: Spike | None) -> str:
        """Writes a `spike` event, unless an earlier start of the run did, and warns of the first of several bad steps
        in a row. Returns the names of some documents, on the one rank that reports."""
        if not self._engine.is_reporter:
            return ""
        count = len(batch.sample_ids)
        sample = batch.cursor.samples - count
        facts = {"step": step, "sample": sample, "samples": count, "data_hash": batch.data_hash, "why": reason}
        again = spike is not None and spike.again
        documents = [] if again else self._documents(step, sample, batch)
        if self._reported is None:
            spikes = (event for event in read_events(self._config.run.dir) if event["event"] == "spike")
            self._reported = {(event["step"], event["data_hash"]) for event in spikes}
        if (step, batch.data_hash) not in self._reported:
            self._reported.add((step, batch.data_hash))
            figures = {"value": spike.value, "median": spike.median, "limit": spike.limit} if spike is not None else {}
            self._log.event("spike", **facts, **figures, documents=documents)
        if not again and not isinstance(self._settings, SpikesAct):
            trace = f"pretrain data trace {self._config.run.dir} --step {step}"
            self._log.warn(f"step {step}: {reason}; its documents are in events.jsonl, their texts in `{trace} --text`")
        return ", ".join(
            f"{document['source']}: {document['file']}:{document['index']}" for document in documents[:_NUM_NAMED]
        )

    def _documents(self, step: int, sample: int, batch: Batch) -> list[dict[str, object]]:
        names = [source.called for source in self._config.data.resolved_sources]
        part, _ = self._stream.locate(sample, len(batch.sample_ids))
        try:
            return trace_documents(part, batch.sample_ids, names)
        except (DataError, OSError) as error:  # training does not need the documents' names
            self._log.warn(f"the documents of step {step} cannot be named: {error}")
            return []
