"""What a run does about a bad step (`health.spike`): says so, with its documents, and under `act` names the samples to
leave out when it goes back. All ranks come to the same, as a step's numbers are the same on all.
"""

import math
from collections import Counter

from data_pipeline.batch import Batch
from data_pipeline.errors import DataError
from data_pipeline.loader import ChainedStreams, SampleStream
from pretrain.checkpoint.finite import not_finite
from pretrain.checkpoint.state import Record
from pretrain.config.health import SpikesAct, SpikesOff
from pretrain.config.run_config import RunConfig
from pretrain.config.skip import Skip
from pretrain.data.trace import documents
from pretrain.engine.base import StepResult
from pretrain.errors import RunError
from pretrain.observe.log import RunLog
from pretrain.observe.metrics import read_events
from pretrain.observe.spikes import Recent, Spike, SpikeWatch
from pretrain.training.build import Training
from pretrain.training.skips import added, given_up, with_skips

_NAMED = 3  # documents in a sentence


def check_heldout(step: int, loss: float) -> None:
    """Raises RunError where the held-out `loss` after `step` is no number: what was trained is worth nothing."""
    if not math.isfinite(loss):
        raise RunError(
            f"step {step}: the held-out loss is {loss}, so that nothing is saved. The last checkpoint is from before: "
            "lower the learning rate or the weight decay, or train with precision=fp32 or bf16"
        )


def check_trained(step: int, updates: int, largest_norm: float | None, config: RunConfig) -> None:
    """Raises RunError at the end of a run that has trained nothing: it has made no `updates`, or those since its start
    had gradients of zero alone. `largest_norm` is of these; None: there were none."""
    if updates and largest_norm != 0:
        return
    cure = "loss_scale.initial" if config.precision == "fp16" else "the data, optimizer.clip_norm and precision"
    what = "every gradient was zero" if updates else "every step was skipped, as its gradient was not finite"
    raise RunError(f"step {step}: the run ends without having trained anything: {what}. Look at {cure}")


class BadSteps:
    """Of a run that goes on with `config`, whose samples are `stream`, from what `start` says."""

    def __init__(
        self, run: Training, log: RunLog, config: RunConfig, stream: SampleStream | ChainedStreams, start: Record
    ) -> None:
        self._run, self._log, self._config, self._stream = run, log, config, stream
        self._settings = config.health.spike
        self._told: set[tuple[int, str]] | None = None  # of spikes: step and data_hash; None: not looked up yet
        self._watch = None if isinstance(self._settings, SpikesOff) else SpikeWatch(self._settings, start.recent)

    @property
    def recent(self) -> Recent | None:
        """What the next step is judged by, for a checkpoint."""
        return self._watch.recent if self._watch is not None else None

    def judge(self, step: int, batch: Batch, result: StepResult, saves: bool) -> RunConfig | None:
        """Looks at a step, and if the run `saves` after it, at what would be saved. Returns the config to go back with,
        or None: the run goes on. Raises RunError where it can do neither. Collective."""
        spike = self._watch.judge(result) if self._watch is not None else None
        bad = not_finite(self._run.engine.state()) if saves else None
        if bad is not None:
            said = f"{bad} is not finite after the update"
        elif spike is not None:
            said = spike.sentence()
        else:
            return None
        if bad is not None and not isinstance(self._settings, SpikesAct):
            raise RunError(
                f"step {step}: {said}, so it is not saved. The last checkpoint is from before: lower the learning "
                "rate, or set health.spike=act to go back and leave out this step's samples"
            )
        named = self._report(step, batch, said, spike)
        if not isinstance(self._settings, SpikesAct):
            return None
        why_not = given_up(self._config.run.skipped, step, self._settings)
        if why_not is not None:
            raise RunError(
                f"step {step}: {said}, {why_not}. That is a problem of the data or of the numbers, which going back "
                f"does not solve: look at its documents ({named or 'in events.jsonl'}), or lower the learning rate"
            )
        self._log.warn(f"step {step}: {said}; the run goes back to before it and leaves out its samples")
        count = len(batch.sample_ids)
        skip = Skip(step=step, sample=batch.cursor.samples - count, samples=count, why=said)
        return with_skips(self._config, added(self._config.run.skipped, skip))

    def returned(self, step: int) -> None:
        """The run goes on after `step` steps: an event for each skip that it went back for, if there is none yet."""
        if not self._run.engine.is_reporter or not self._config.run.skipped:
            return
        events = read_events(self._config.run.dir)
        spikes, told = (
            Counter((event["step"], event["sample"]) for event in events if event["event"] == kind)
            for kind in ("spike", "went_back")
        )
        untold = spikes - told  # bad batches in a row have the same place, each in its turn
        for skip in self._config.run.skipped:
            place = (skip.step, skip.sample)
            if told[place]:
                told[place] -= 1
            elif untold[place]:
                untold[place] -= 1
                self._log.event("went_back", to_step=step, **skip.model_dump())

    def _report(self, step: int, batch: Batch, said: str, spike: Spike | None) -> str:
        """A `spike` event, unless a run that was killed has written it, and a warning for the first of several in
        succession. Returns the names of some documents, on the one rank that reports."""
        if not self._run.engine.is_reporter:
            return ""
        count = len(batch.sample_ids)
        sample = batch.cursor.samples - count
        facts = {"step": step, "sample": sample, "samples": count, "data_hash": batch.data_hash, "why": said}
        again = spike is not None and spike.again
        found = [] if again else self._documents(step, sample, batch)
        if self._told is None:
            known = (event for event in read_events(self._config.run.dir) if event["event"] == "spike")
            self._told = {(event["step"], event["data_hash"]) for event in known}
        if (step, batch.data_hash) not in self._told:
            self._told.add((step, batch.data_hash))
            figures = {"value": spike.value, "median": spike.median, "limit": spike.limit} if spike is not None else {}
            self._log.event("spike", **facts, **figures, documents=found)
        if not again and not isinstance(self._settings, SpikesAct):
            trace = f"pretrain data trace {self._config.run.dir} --step {step}"
            self._log.warn(f"step {step}: {said}; its documents are in events.jsonl, their texts in `{trace} --text`")
        return ", ".join(f"{one['source']}: {one['file']}:{one['index']}" for one in found[:_NAMED])

    def _documents(self, step: int, sample: int, batch: Batch) -> list[dict[str, object]]:
        names = [source.called for source in self._config.data.resolved_sources]
        part, _ = self._stream.part(sample, len(batch.sample_ids))
        try:
            return documents(part, batch.sample_ids, names)
        except (DataError, OSError) as error:  # what is trained on is there, and that is enough to go on
            self._log.warn(f"the documents of step {step} cannot be told: {error}")
            return []
